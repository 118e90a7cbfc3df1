"""Processes of one group, each of which runs the same function."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

_context = multiprocessing.get_context("forkserver")
# Read once, before processes are made.
_context.set_forkserver_preload(["ropekit.distributed", "transformers.models.llama.modeling_llama"])


def run(ranks: int, function: Callable[..., Any], *arguments: Any, seconds: int = 300) -> list[Any]:
    """What function(rank, *arguments) returned in each process, or how it failed; None of one that
    ended otherwise. The group's collectives may take so many seconds."""
    with TemporaryDirectory() as folder:
        made = [
            _context.Process(
                target=_run, args=(rank, (ranks, folder, seconds), function, arguments), daemon=True
            )
            for rank in range(ranks)
        ]
        for process in made:
            process.start()
        for process in made:
            process.join()
        files = [Path(folder) / f"result{rank}" for rank in range(ranks)]
        return [torch.load(f, weights_only=False) if f.exists() else None for f in files]


def _run(rank: int, group: tuple[int, str, int], function: Any, arguments: Any) -> None:
    ranks, folder, seconds = group
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)
    timeout = timedelta(seconds=seconds)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timeout)
    try:
        found = function(rank, *arguments)
    except Exception:
        found = traceback.format_exc()
    torch.save(found, f"{folder}/part{rank}")
    Path(f"{folder}/part{rank}").rename(f"{folder}/result{rank}")
    if not isinstance(found, str):
        dist.destroy_process_group()
