"""The example of a server, with a model whose words are numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import engines
import tokenizers
import torch
import transformers

_EXAMPLE = Path(__file__).parents[2] / "examples/python/vllm_server.py"


def test_server(saved, own):
    folder = saved("llama")
    own("llama")  # vLLM keeps what it finds out of a model's class, which takes a server a process
    words = {f"n{i}": i for i in range(engines.VOCABULARY)}
    reader = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="n0"))
    reader.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=reader).save_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    given = torch.tensor([[5, 9, 40]])
    made = model.generate(given, attention_mask=given.sign(), max_new_tokens=16, do_sample=False)
    answers = made[0, 3:].tolist()
    env = os.environ | {"VLLM_LOGGING_LEVEL": "INFO"}
    env.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)  # the server has processes of its own
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
    until = answers.index(2) if 2 in answers else len(answers)  # the end of a text
    assert answer[:3] == ["n5", "n9", "n40"]
    assert answer[3:] == [f"n{x}" for x in answers[:until]]
    assert "Layers attend by ropekit." in found.stdout + found.stderr
