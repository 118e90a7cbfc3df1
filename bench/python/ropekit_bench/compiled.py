"""Code that torch.compile will need, made before anything is timed: by several processes, in inductor's cache
on disk, where the run finds it.

Inductor's keys hold a pickled memory format, and with it the first module of sys.modules that has a `torch`:
these processes are spawned by importing what the run was started as, so that it is the same one."""

import json
import multiprocessing
import os
import signal
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress

import torch
from tqdm import tqdm

from ropekit_bench.operations import case_refusal, make_case
from ropekit_bench.peers import load, prepare

PROCESSES_MOST = 16
# Members of a shape on which the code does not depend.
DATA = ("in_place", "launch", "max_position", "position_ids", "rope_theta")


def distinct(peers, listed):
    """(implementation, shape), one for each code."""
    found, shapes = {}, [case["shape"] for case in listed if not case_refusal(case["shape"])]
    for name in (peer.name for peer in peers if peer.compiles):
        for shape in shapes:
            key = json.dumps([value for member, value in shape.items() if member not in DATA])
            found[name, key] = name, shape
    return list(found.values())


def begin(threads):
    from torch._inductor import config

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends at once, without a trace
    os.sched_setaffinity(0, range(os.cpu_count()))  # OpenMP may have bound the process that started this one
    torch.set_num_threads(threads)
    config.compile_threads = 1
    config.autotune_local_cache = False  # the run chooses between variants, when nothing runs beside it


def compile_one(name, shape, device):
    torch.compiler.reset()
    with suppress(Exception):  # the run declines the case, with the reason
        case = make_case(shape, torch.device(device), 0, 0, False)
        prepare(load(name)(name, None), case)(0)
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def fill_cache(peers, listed, device, threads):
    work = distinct(peers, listed)
    if not work:
        return
    workers = min(os.cpu_count(), len(work), PROCESSES_MOST)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, begin, (threads,)) as pool:
        made = [pool.submit(compile_one, *job, str(device)) for job in work]
        try:
            for _ in tqdm(as_completed(made), total=len(made), desc="torch.compile", disable=None):
                pass
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
