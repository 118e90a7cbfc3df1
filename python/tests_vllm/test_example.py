"""The example of a server, with a model whose words are numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import engines
import tokenizers
import transformers

_EXAMPLE = Path(__file__).parents[2] / "examples/python/vllm_server.py"


def test_server(saved):
    folder = saved("llama")
    words = {f"n{i}": i for i in range(engines.VOCABULARY)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="n0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)
    with engines.engine(folder, "attention,rotation") as llm:
        ((tokens, _),) = engines.run(llm, [[5, 9, 40]], new=16)
    env = dict(os.environ)
    del env["VLLM_ENABLE_V1_MULTIPROCESSING"]  # the server has processes of its own
    env["VLLM_LOGGING_LEVEL"] = "INFO"
    options = ["--dtype", "float32", "--enforce-eager", "--max-model-len", "128"]
    options += ["--kv-cache-memory-bytes", str(1 << 26)]
    found = subprocess.run(
        [sys.executable, _EXAMPLE, folder, "n5 n9 n40", *options],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-4000:]
    answer = found.stdout.splitlines()[-1].split()
    until = tokens.index(2) if 2 in tokens else len(tokens)  # the end of a text
    assert answer[:3] == ["n5", "n9", "n40"]
    assert answer[3:] == [f"n{x}" for x in tokens[:until]]
    assert "Layers attend by ropekit." in found.stdout + found.stderr
