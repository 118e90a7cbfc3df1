"""The Python examples run and say what is true; so does the check command."""

from __future__ import annotations

import doctest
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ropekit
import torch
from ropekit import check

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "python"
PACKAGE = Path(ropekit.__file__).parents[1]
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 97,
}


def run(*arguments: str | Path) -> str:
    environment = os.environ | {"PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_demo(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert "largest change" in run(EXAMPLES / "demo.py", tmp_path)
    assert (tmp_path / "rope.png").stat().st_size > 10000


def test_train_help() -> None:
    text = " ".join(run(EXAMPLES / "train.py", "--help").split())
    assert "scaled_dot_product_attention, and ropekit.attention. positional" in text


def test_train(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    text = run(EXAMPLES / "train.py", folder, "--steps", "8", "--device", "cpu", "--twice")
    losses = [float(x) for x in re.findall(r"(\d\.\d+) at last", text)]
    apart = [float(x) for x in re.findall(r"at most (\S+) from", text)]
    assert len(losses) == 5 and max(losses) < 5.0  # from log 256, 5.5
    assert len(apart) == 5 and max(apart) < 1e-3
    assert all(f"\n{name}, deterministic: " in text for name in ("sdpa", "ropekit"))
    assert "ropekit, deterministic, once more: the same losses" in text
    assert folder.is_dir()
    pytest.importorskip("matplotlib")
    assert (folder / "train.png").stat().st_size > 10000


FLASH_ATTN_3 = """
import torch, train
from torch.nn.functional import scaled_dot_product_attention

def attended(*heads):
    heads = (x.transpose(1, 2) for x in heads)
    return scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).transpose(1, 2)

def bwd(dout, q, k, v, out, lse, is_causal, deterministic):
    assert is_causal and deterministic == torch.are_deterministic_algorithms_enabled()
    with torch.enable_grad():
        heads = [x.detach().requires_grad_() for x in (q, k, v)]
        return *torch.autograd.grad(attended(*heads), heads, dout), lse.clone()

library = torch.library.Library("flash_attn_3", "DEF")
library.define("fwd(Tensor q, Tensor k, Tensor v, *, bool is_causal) -> (Tensor, Tensor)")
library.define("bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, *, "
    "bool is_causal, bool deterministic) -> (Tensor, Tensor, Tensor, Tensor)")
library.impl("fwd", lambda q, k, v, is_causal: (attended(q, k, v).clone(), torch.ones(1)), "CPU")
library.impl("bwd", bwd, "CPU")
text = torch.arange(1024) % 64
for by in (train.sdpa, train.flash_attn_3):
    for in_order in (False, True):
        steps = train.train((by, in_order), train.SIZES["small"], text, 2, torch.float32)
        print([loss for loss, _ in steps])
"""


def test_train_flash_attn_3(tmp_path: Path) -> None:
    """Operators of FlashAttention 3's names, on the CPU, train as PyTorch's do."""
    code = tmp_path / "code.py"
    code.write_text(f"import sys; sys.path.insert(0, {str(EXAMPLES)!r})\n{FLASH_ATTN_3}")
    assert len(losses := run(code).splitlines()) == 4 and len(set(losses)) == 1


def examples_of(page: Path) -> list[str]:
    found: list[str] = re.findall(r"(?s)```python\n(.*?)```", page.read_text(encoding="utf-8"))
    assert found
    return found


def test_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    run("-c", "".join(examples_of(Path("README.md"))))


def test_python_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples of docs/python.md, one after the other, of a small model."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.chdir(ROOT)
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL)).save_pretrained(tmp_path)
    names: dict[str, Any] = {
        "name": str(tmp_path),
        "inputs": {"input_ids": torch.ones(1, 3, dtype=torch.long), "max_new_tokens": 2},
    }
    for example in examples_of(Path("docs/python.md")):
        exec(example, names)
    assert names["leaf"].grad.abs().max() > 0
    torch.testing.assert_close(
        names["rotated_q"].float(), names["leaf"].float(), rtol=0.02, atol=0.02
    )
    (first,) = (names["lengths"] == 0).nonzero()[0]
    value = names["v"][first, 0].repeat_interleave(4, 0)  # of its only key
    torch.testing.assert_close(names["out"][first, 0], value)


@pytest.mark.parametrize("name", ["apply", "append", "attention", "decode", "RoPEAttention"])
def test_docstrings(name: str) -> None:
    """Each begins with a short paragraph, tells every argument, and has an example that is true."""
    documented = getattr(ropekit, name)
    assert len(documented.__doc__.partition("\n\n")[0].split()) <= 20
    told = set(re.findall(r"\w+", documented.__doc__))
    assert not inspect.signature(documented).parameters.keys() - told
    (found,) = doctest.DocTestFinder(recurse=False).find(documented, name, globs=globals())
    assert found.examples
    assert doctest.DocTestRunner().run(found).failed == 0


def test_attention_learns(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from rope_attention import RoPEAttention  # noqa: PLC0415

    layer = RoPEAttention(64, heads=4, kv_heads=2).to(device)
    x = torch.randn(2, 9, 64, device=device)
    before = layer(x)
    before.square().mean().backward()
    torch.optim.SGD(layer.parameters(), 0.5).step()
    assert layer(x).square().mean() < before.square().mean()
    with pytest.raises(ValueError, match="do not divide"):
        RoPEAttention(64, heads=3)


def test_check_command_without_transformers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert check.main([]) == 1
    assert "pip install 'transformers>=5.16'" in capsys.readouterr().err


def test_check_command(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    assert check.main(["--quick", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0 failed"
