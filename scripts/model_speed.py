#!/usr/bin/env python3
"""Tokens per second of Transformers' models of random weights, by kind of attention.

    scripts/model_speed.py OUTPUT.jsonl                 a GPU's, or a CPU's where there is none

Generation with a StaticCache, of one sequence and of 32, and a training step, each also under
torch.compile: with eager, sdpa, Liger's patch over sdpa, and ropekit, as attn_implementation and as
patch(attention=True). Each has a process of its own, as a patch changes a model's source file. In every
round they take turns in another order. scripts/update_documents shows files of bench/results.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("eager", "sdpa", "liger", "ropekit", "ropekit, patched")
PACKAGES = ("torch", "transformers", "liger-kernel", "triton")
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip
HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim")
FIELDS = ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", *HEADS)
# The name of the classes, the fields of the configuration, and the rotation.
MODELS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "Llama 3.2 1B": ("Llama", (2048, 8192, 16, 128256, 32, 8, 64), LLAMA3),
    "Qwen3 0.6B": (
        "Qwen3",
        (1024, 3072, 28, 151936, 16, 8, 128),
        {"rope_type": "default", "rope_theta": 1e6},
    ),
}
ALL = {
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
    "eos_token_id": None,
    "pad_token_id": 0,
}
# What replaces the first fields; tokens of a prompt and of an answer, rows and tokens of training.
SIZES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "whole": ((), (512, 64, 2, 2048)),
    "small": ((512, 1536, 4, 8192, 8, 2), (128, 32, 2, 512)),
    "tiny": ((32, 32, 1, 97, 2, 1, 16), (8, 3, 1, 8)),
}
CASES = [
    (*case, compiled)
    for compiled in (False, True)
    for case in (("generate", 1), ("generate", 32), ("train", 0))
]
TURN_SECONDS, RUNS_MOST = 0.5, 16  # of a turn


class Subject:
    """A model with one kind of attention, in a process of its own."""

    def __init__(self, model: str, kind: str, size: str, device: str) -> None:
        import torch
        import transformers

        self.torch, self.device, self.cuda = torch, device, device == "cuda"
        name, values, rope = MODELS[model]
        fewer, self.lengths = SIZES[size]
        fields = dict(zip(FIELDS, (*fewer, *values[len(fewer) :]), strict=True))
        config = getattr(transformers, f"{name}Config")(**fields, **ALL, rope_parameters=rope)
        config._attn_implementation = {"liger": "sdpa", "ropekit, patched": "sdpa"}.get(kind, kind)
        if "ropekit" in kind:
            import ropekit.transformers
        torch.manual_seed(0)
        with torch.device(device):
            dtype = torch.bfloat16 if self.cuda else torch.float32
            self.model = getattr(transformers, f"{name}ForCausalLM")._from_config(config, dtype=dtype)
        if kind == "liger":
            import liger_kernel.transformers as liger

            getattr(liger, f"apply_liger_kernel_to_{name.lower()}")(model=self.model)
        elif kind == "ropekit, patched":
            self.model.set_attn_implementation("ropekit")
            self.patch = ropekit.transformers.patch(self.model, attention=True)
            fused = sum("in one call" in line for line in self.patch.report)
            print(
                f"{model}: {fused} of {config.num_hidden_layers} layers append in one call", file=sys.stderr
            )
        self.model.generation_config.eos_token_id = None
        self.run: Any = None

    def wait(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize()

    def ids(self, batch: int, tokens: int) -> Any:
        generator = self.torch.Generator().manual_seed(1)
        top = self.model.config.vocab_size
        return self.torch.randint(3, top, (batch, tokens), generator=generator).to(self.device)

    def generate(self, batch: int, compiled: bool) -> Any:
        import transformers

        self.model.eval()
        prompt, count, *_ = self.lengths
        ids = self.ids(batch, prompt)
        options: dict[str, Any] = {"attention_mask": self.torch.ones_like(ids), "do_sample": False}
        options |= {"max_new_tokens": count, "min_new_tokens": count}
        options |= {"cache_implementation": "static", "disable_compile": not compiled}
        if compiled and not self.cuda:  # a GPU's is compiled as Transformers does by itself
            how = transformers.CompileConfig(mode=None, fullgraph=False)
            how._compile_all_devices = True
            options["compile_config"] = how
        return lambda: self.model.generate(ids, **options) is None

    def train(self, _: int, compiled: bool) -> Any:
        model: Any = self.model.train()
        call, ids = self.torch.compile(model) if compiled else model, self.ids(*self.lengths[2:])
        optimiser = self.torch.optim.SGD(model.parameters(), 1e-6)

        def run() -> float:
            loss = call(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            return float(loss.detach())

        return run

    def prepare(self, task: str, batch: int, compiled: bool) -> dict[str, float]:
        """Makes ready a case; the loss of the first step of training."""
        self.run = None
        self.torch._dynamo.reset()
        gc.collect()
        if self.cuda:
            self.torch.cuda.empty_cache()
        self.run = getattr(self, task)(batch, compiled)
        losses = [self.run() for _ in range(3)]  # the second may be compiled anew, the third is not
        self.wait()
        return {"loss": float(losses[0])}

    def measure(self) -> dict[str, float]:
        """Seconds of a run in a turn, the mean of as many as take TURN_SECONDS."""
        times: list[float] = []
        while len(times) < RUNS_MOST and sum(times) < TURN_SECONDS:
            begin = time.perf_counter()
            self.run()
            self.wait()
            times.append(time.perf_counter() - begin)
        return {"seconds": statistics.mean(times)}


def serve(given: list[str]) -> None:
    """Answers lines of JSON; what libraries print goes to the standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    subject = None
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            subject = subject or Subject(*given)
            answer = getattr(subject, name)(*arguments)
        except Exception as error:  # whatever a package raises is that kind's reason
            answer = {"reason": f"{type(error).__name__}: {str(error).strip()}"[:300]}
        print(json.dumps(answer), file=out, flush=True)


class Worker:
    """A process of one kind."""

    def __init__(self, *given: str) -> None:
        self.kind = given[1]
        environment = {"OMP_WAIT_POLICY": "passive"} | os.environ
        command = [sys.executable, __file__, "--serve", *given]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)

    def ask(self, *what: Any) -> dict[str, Any]:
        self.tell(*what)
        return self.answer()

    def tell(self, *what: Any) -> None:
        with contextlib.suppress(OSError):  # where it has ended, there is no answer
            print(json.dumps(what), file=self.process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline() if self.process.stdout else ""
        return dict(json.loads(line)) if line else {"reason": "its process ended"}


def run_case(workers: list[Worker], case: tuple[Any, ...], rounds: int) -> dict[str, Any]:
    """Median seconds by kind, of those that could be made ready, and their first losses."""
    for w in workers:  # side by side, as they may compile
        w.tell("prepare", *case)
    answers = {w: w.answer() for w in workers}
    for w, answer in answers.items():
        if "reason" in answer:
            print(f"{w.kind}: {answer['reason']}", flush=True)
    ready = [w for w in workers if "reason" not in answers[w]]
    times: dict[str, list[float]] = {w.kind: [] for w in ready}
    for i in range(rounds):
        order = ready[i % len(ready) :] + ready[: i % len(ready)] if ready else []
        for w in reversed(order) if i % 2 else order:
            times[w.kind] += [s] if (s := w.ask("measure").get("seconds")) else []
    losses = {w.kind: answers[w]["loss"] for w in ready}
    return {"seconds": {k: statistics.median(t) for k, t in times.items() if t}, "loss": losses}


def heading(tool: str, device: str) -> dict[str, Any]:
    """What says of a run on which machine it was, and with what."""
    answer = subprocess.run([tool, "info", "--json"], capture_output=True, text=True, check=True)
    info = json.loads(answer.stdout)
    found = [r for r in info["records"] if "compute_units" in r and r["backend"] == device]
    if not found:
        sys.exit(f"model_speed: {tool} finds no device of the backend {device}")
    run = {"command": "models", "quick": False, "declined": {}, "device": found[0]}
    versions = []
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append({"implementation": package, "version": importlib.metadata.version(package)})
    return (
        run | {member: info[member] for member in ("time", "build", "host")} | {"implementations": versions}
    )


def parse() -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cuda where there is one")
    parser.add_argument("--size", choices=SIZES, help="whole on a GPU, small on a CPU unless given")
    parser.add_argument("--only", choices=MODELS, action="append", help="a model; all unless given")
    parser.add_argument("--attention", choices=KINDS, action="append", help="a kind; all unless given")
    parser.add_argument("--plain", action="store_true", help="leaves out what torch.compile makes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tool", default=str(ROOT / "build" / "release" / "bench" / "ropekit"))
    options = parser.parse_args()
    if options.device is None:
        import torch

        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    options.size = options.size or ("whole" if options.device == "cuda" else "small")
    return options


def main() -> None:
    options = parse()
    lines = [heading(options.tool, options.device)]
    prompt, count, rows, tokens = SIZES[options.size][1]
    for model in options.only or MODELS:
        workers = [Worker(model, kind, options.size, options.device) for kind in options.attention or KINDS]
        for case in (c for c in CASES if not (c[2] and options.plain)):
            found, batch = run_case(workers, case, options.rounds), case[1]
            task, made = f"{count} tokens behind {prompt}, batch {batch}", count * batch
            if case[0] == "train":
                task, made = f"training, {rows} x {tokens} tokens", rows * tokens
            task += ", compiled" * case[2]
            speed = {kind: float(f"{made / s:.6g}") for kind, s in found["seconds"].items()}
            lines.append({"model": f"{model}'s shape, {options.size}", "task": task, "speed": speed})
            lines[-1] |= {"loss": found["loss"]} if case[0] == "train" else {}
            text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
            options.output.write_text(text, encoding="utf-8")
            told = ", ".join(f"{kind} {value:.1f}" for kind, value in speed.items())
            print(f"{model}, {task}: {told} tokens/s", flush=True)
        for worker in workers:
            worker.process.kill()
            worker.process.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2:])
    else:
        main()
