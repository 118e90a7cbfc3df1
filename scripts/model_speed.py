#!/usr/bin/env python3
"""Tokens per second of Transformers' models of random weights, by kind of attention.

    scripts/model_speed.py OUTPUT.json                  a GPU's, or a CPU's where there is none
    scripts/model_speed.py OUTPUT.json --only=llama     of one model alone
    scripts/model_speed.py OUTPUT.json --resume         what the file lacks
    scripts/model_speed.py OUTPUT.json --seconds=420    ends by then

Generation with a StaticCache, of one sequence and of 32, and a training step, each also under
torch.compile: with eager, sdpa, Liger's patch over sdpa, and ropekit, as attn_implementation and as
patch(attention=True). Each has a process of its own, as a patch changes a model's source file; those
of a case are made ready side by side and then measured one at a time, in every round in another
order. A case is in the file once it ends. Its place is bench/results, from which
scripts/update_documents fills pages.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.metadata
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("eager", "sdpa", "liger", "ropekit", "ropekit, patched")
PACKAGES = ("torch", "transformers", "liger-kernel", "triton")
# Llama 3.2 1B and Qwen3 0.6B: the name of the classes, the fields of the configuration.
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": (
        "Llama",
        {
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "vocab_size": 128256,
            "rope_parameters": LLAMA3,
        },
    ),
    "qwen3": (
        "Qwen3",
        {
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
    ),
}
ALL = {
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
    "eos_token_id": None,
    "pad_token_id": 0,
}
# What replaces the fields above, and how long prompts, answers and rows of training are.
LENGTHS = {"prompt": 512, "tokens": 64, "train_batch": 2, "train_tokens": 2048}
SIZES: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "whole": ({}, LENGTHS),
    "half": ({}, LENGTHS),  # of the layers
    "small": (
        {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "vocab_size": 8192,
         "num_attention_heads": 8, "num_key_value_heads": 2},
        {"prompt": 128, "tokens": 32, "train_batch": 2, "train_tokens": 512},
    ),
    "tiny": (
        {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 97,
         "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
        {"prompt": 8, "tokens": 3, "train_batch": 1, "train_tokens": 8},
    ),
}  # fmt: skip
# Task, sequences, under torch.compile: what is most wanted first.
CASES = (
    ("generate", 1, False),
    ("generate", 32, False),
    ("train", 0, False),
    ("generate", 1, True),
    ("train", 0, True),
    ("generate", 32, True),
)
TURN_SECONDS = 0.5  # of a turn at least, by repeated runs
RUNS_MOST = 16
TRAINING_AT_ONCE = 2  # being compiled side by side, for memory; else one at a time


# ---- a process of one kind ----


class Subject:
    """A model with one kind of attention."""

    def __init__(self, given: dict[str, Any]) -> None:
        import torch
        import transformers

        self.torch, self.device = torch, given["device"]
        self.cuda = self.device == "cuda"
        name, fields = MODELS[given["model"]]
        fewer, self.lengths = SIZES[given["size"]]
        if given["size"] == "half":
            fewer = {"num_hidden_layers": fields["num_hidden_layers"] // 2}
        config = getattr(transformers, f"{name}Config")(**(fields | ALL | fewer))
        kind = given["attention"]
        config._attn_implementation = {"liger": "sdpa", "ropekit, patched": "sdpa"}.get(kind, kind)
        if kind == "ropekit":
            import ropekit.transformers
        torch.manual_seed(0)
        dtype = torch.bfloat16 if self.cuda else torch.float32
        with torch.device(self.device):
            self.model = getattr(transformers, f"{name}ForCausalLM")._from_config(config, dtype=dtype)
        self.note = ""
        if kind == "liger":
            import liger_kernel.transformers as liger

            getattr(liger, f"apply_liger_kernel_to_{given['model']}")(model=self.model)
        elif kind == "ropekit, patched":
            import ropekit.transformers

            self.model.set_attn_implementation("ropekit")
            self.patch = ropekit.transformers.patch(self.model, attention=True)
            fused = sum("in one call" in line for line in self.patch.report)
            self.note = f"{fused} of {config.num_hidden_layers} layers append in one call"
        self.model.generation_config.eos_token_id = None
        self.run: Any = None
        self.is_training = False

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
        ids = self.ids(batch, self.lengths["prompt"])
        count = self.lengths["tokens"]
        options: dict[str, Any] = {"attention_mask": self.torch.ones_like(ids), "do_sample": False}
        options |= {"max_new_tokens": count, "min_new_tokens": count}
        options |= {"cache_implementation": "static", "disable_compile": not compiled}
        if compiled and not self.cuda:  # a GPU's is compiled as Transformers does by itself
            how = transformers.CompileConfig(mode=None, fullgraph=False)
            how._compile_all_devices = True
            options["compile_config"] = how

        def run() -> float:
            found = self.model.generate(ids, **options)
            assert found.shape[1] == ids.shape[1] + count
            return 0.0

        return run

    def train(self, batch: int, compiled: bool) -> Any:
        model: Any = self.model.train()
        call = self.torch.compile(model) if compiled else model
        ids = self.ids(self.lengths["train_batch"], self.lengths["train_tokens"])
        optimiser = self.torch.optim.SGD(model.parameters(), 1e-6)

        def run() -> float:
            loss = call(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            return float(loss.detach())

        return run

    def prepare(self, task: str, batch: int, compiled: bool) -> dict[str, Any]:
        """Makes ready a case; the seconds of a run."""
        self.run, self.is_training = None, task == "train"
        self.torch._dynamo.reset()
        self.free()
        self.run = getattr(self, task)(batch, compiled)
        begin = time.perf_counter()
        losses = [self.run() for _ in range(3)]  # the second may be compiled anew, the third is not
        self.wait()
        self.free()
        return {"ready_seconds": time.perf_counter() - begin, "loss": losses[0], "note": self.note}

    def free(self) -> None:
        gc.collect()
        if self.cuda:
            self.torch.cuda.empty_cache()

    def measure(self, *_: Any) -> dict[str, Any]:
        """Seconds of a run in a turn, the mean of as many as take TURN_SECONDS."""
        times: list[float] = []
        if self.is_training:  # whose memory is mapped anew
            self.run()
            self.wait()
        while len(times) < RUNS_MOST and sum(times) < TURN_SECONDS:
            begin = time.perf_counter()
            self.run()
            self.wait()
            times.append(time.perf_counter() - begin)
        if self.is_training:
            self.free()
        return {"seconds": statistics.mean(times)}


def serve(given: str) -> None:
    """Answers lines of JSON; what libraries print goes to the standard error."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(what: Any, *arguments: Any) -> Any:
        try:
            answer = what(*arguments)
        except Exception as error:  # whatever a package raises is that kind's reason
            answer = {"reason": f"{type(error).__name__}: {str(error).strip()}"[:300]}
        told = answer if isinstance(answer, dict) else {}
        print(json.dumps(told), file=out, flush=True)
        return answer

    subject = tell(Subject, json.loads(given))
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        tell(getattr(subject, name, lambda *_: subject), *arguments)


class Worker:
    """A process of one kind. Its answers raise queue.Empty once `deadline` has passed."""

    def __init__(self, model: str, attention: str, size: str, device: str, deadline: float) -> None:
        self.model, self.attention, self.deadline = model, attention, deadline
        given = {"model": model, "attention": attention, "device": device, "size": size}
        environment = {"TORCHINDUCTOR_COMPILE_THREADS": "4", "OMP_WAIT_POLICY": "passive"} | os.environ
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.answers: Any = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.answers.put(json.loads(line))
        self.answers.put({"reason": f"its process ended with status {self.process.wait()}"})

    def answer(self) -> dict[str, Any]:
        left = self.deadline - time.monotonic()
        found: dict[str, Any] = self.answers.get(timeout=max(min(left, threading.TIMEOUT_MAX), 0))
        if "process ended" in found.get("reason", ""):
            self.answers.put(found)  # as it would be to every other
        return found

    def ask(self, *what: Any) -> dict[str, Any]:
        with contextlib.suppress(OSError):  # where it has ended, the answer says so
            print(json.dumps(what), file=self.process.stdin, flush=True)
        return self.answer()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


# ---- the file ----


def heading(tool: str, device: str) -> dict[str, Any]:
    """The document without cases, from what the tool says of the machine."""
    backend = "cpu" if device == "cpu" else "cuda"
    answer = subprocess.run([tool, "info", "--json"], capture_output=True, text=True, check=True)
    info = json.loads(answer.stdout)
    names = ("backend", "device", "name", "features", "memory_bytes", "cache_bytes", "compute_units")
    found = [r for r in info["records"] if "compute_units" in r and r["backend"] == backend]
    if not found:
        sys.exit(f"model_speed: {tool} finds no device of the backend {backend}")
    document = {member: info[member] for member in ("schema", "version", "time", "seed", "build", "host")}
    document |= {"command": "models", "quick": False}
    document["implementations"] = [
        {"implementation": package, "version": version(package), "reason": ""} for package in PACKAGES
    ]
    document["records"] = [{name: found[0][name] for name in names}]
    return document


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def write(document: dict[str, Any], path: Path) -> None:
    lines = ",\n".join(json.dumps(r) for r in document["records"])
    head = json.dumps({k: v for k, v in document.items() if k != "records"}, indent=1)
    part = path.with_suffix(".part")
    part.write_text(f'{head[:-2]},\n "records": [\n{lines}\n]}}\n', encoding="utf-8")
    part.replace(path)


def summarize(values: list[float]) -> dict[str, float]:
    values = sorted(values)
    edge = (len(values) - 1) // 4
    found = {"median": statistics.median(values), "low": values[edge], "high": values[-1 - edge]}
    return {name: digits(x) for name, x in found.items()}


def digits(x: float) -> float:
    """As many as count."""
    return float(f"{x:.6g}")


# ---- cases ----


def prepare(workers: list[Worker], case: tuple[Any, ...]) -> list[dict[str, Any]]:
    task, _, compiled = case
    at_once = len(workers) if task == "generate" else TRAINING_AT_ONCE if compiled else 1
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda worker: worker.ask("prepare", *case), workers))


def measure(workers: list[Worker], answers: list[dict[str, Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds by kind, of those that are ready."""
    ready = [w for w, answer in zip(workers, answers, strict=True) if "reason" not in answer]
    times: dict[str, list[float]] = {w.attention: [] for w in ready}
    for i in range(rounds):
        order = ready[i % len(ready) :] + ready[: i % len(ready)] if ready else []
        for worker in reversed(order) if i % 2 else order:
            answer = worker.ask("measure")
            if "seconds" in answer:
                times[worker.attention].append(answer["seconds"])
            else:
                answers[workers.index(worker)] |= answer
    return times


def run_case(
    workers: list[Worker], answers: list[dict[str, Any]], size: str, case: tuple[Any, ...], rounds: int
) -> list[dict[str, Any]]:
    """The records of one model, whose workers are ready."""
    task, batch, compiled = case
    lengths, model = SIZES[size][1], workers[0].model
    times = measure(workers, answers, rounds)
    batch = batch or lengths["train_batch"]
    tokens = lengths["tokens" if task == "generate" else "train_tokens"]
    records = []
    for worker, answer in zip(workers, answers, strict=True):
        record = {"model": model, "size": size, "task": task, "batch": batch, "tokens": tokens}
        record["prompt"] = lengths["prompt"] if task == "generate" else 0
        record |= {"compiled": compiled, "attention": worker.attention, "reason": answer.get("reason", "")}
        record["note"] = answer.get("note", "")
        found = times.get(worker.attention, [])
        if found and not record["reason"]:
            seconds = summarize(found)
            record |= {"seconds": seconds, "tokens_per_second": digits(batch * tokens / seconds["median"])}
            record |= {"rounds": len(found), "loss": answer["loss"]}
        said = f"{record['tokens_per_second']:.1f} tokens/s" if "seconds" in record else record["reason"]
        ready = answer.get("ready_seconds", 0.0)
        name = f"{model} {task} {batch}{', compiled' if compiled else ''}, {worker.attention}"
        print(f"{name}: {said} (ready in {ready:.0f} s)", flush=True)
        records.append(record)
    return records


def missing(document: dict[str, Any], model: str, size: str) -> list[tuple[Any, ...]]:
    done = {
        (r["task"], r["batch"], r["compiled"])
        for r in document["records"]
        if (r.get("model"), r.get("size")) == (model, size)
    }
    lengths = SIZES[size][1]
    return [c for c in CASES if (c[0], c[1] or lengths["train_batch"], c[2]) not in done]


def parse() -> Any:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output", type=Path)
    parser.add_argument("--device", help="cuda where there is one, else cpu, unless given")
    parser.add_argument("--size", choices=SIZES, help="whole on a GPU, small on a CPU unless given")
    parser.add_argument("--only", choices=MODELS, action="append", help="a model; all unless given")
    parser.add_argument("--attention", choices=KINDS, action="append", help="a kind; all unless given")
    parser.add_argument("--plain", action="store_true", help="leaves out what torch.compile makes")
    parser.add_argument("--cases", type=int, default=len(CASES), help="of a model, at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--resume", action="store_true", help="adds what the file lacks")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="ends by then")
    parser.add_argument("--tool", default=str(ROOT / "build" / "release" / "bench" / "ropekit"))
    options = parser.parse_args()
    if options.device is None:
        import torch

        options.device = "cuda" if torch.cuda.is_available() else "cpu"
    return options


def run_model(options: Any, document: dict[str, Any], model: str, size: str, deadline: float) -> None:
    cases = [c for c in missing(document, model, size) if not (c[2] and options.plain)]
    kinds = (options.attention or KINDS) if cases else ()
    workers = [Worker(model, kind, size, options.device, deadline) for kind in kinds]
    try:
        for worker in workers:
            if reason := worker.answer().get("reason"):
                print(f"{model}, {worker.attention}: {reason}", flush=True)
        for case in cases[: options.cases]:
            answers = prepare(workers, case)
            document["records"] += run_case(workers, answers, size, case, options.rounds)
            write(document, options.output)
    finally:
        for worker in workers:
            worker.end()


def main() -> None:
    options, begun = parse(), time.monotonic()
    size = options.size or ("whole" if options.device == "cuda" else "small")
    if options.resume and options.output.exists():
        document = json.loads(options.output.read_text(encoding="utf-8"))
    else:
        document = heading(options.tool, options.device) | {"rounds": options.rounds}
    try:
        for model in options.only or MODELS:
            run_model(options, document, model, size, begun + options.seconds)
    except queue.Empty:
        print(f"model_speed: the {options.seconds:.0f} s are over; --resume runs what is left")
    print(f"model_speed: {time.monotonic() - begun:.0f} s; results in {options.output}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        main()
