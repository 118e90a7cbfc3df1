"""Attention against length: what is drawn and said of runs with --tax."""

import math
import re

import pytest
from conftest import ROOT, measurement

from ropekit_bench.compact import compact, expand
from ropekit_bench.report import lengths, page
from ropekit_bench.report.model import ALONE, BY_CUDA, BY_CUDNN, CALL, IN_TILES, ROTATED, machines

CHAIN = "ropekit + cuDNN"
# Seconds of attention of 16K tokens by length, of the separate rotation, and each one's multiples of both.
ATTENDING = {512: 2e-4, 2048: 4e-4, 8192: 1.8e-3, 16384: 3.6e-3, 32768: 1.4e-2, 131072: 2.4e-1}
ROTATING = 1.5e-4
PARTS = {
    CALL: (1, 0.9), ALONE: (1, 0), BY_CUDA: (1.8, 0.5), BY_CUDA + ROTATED: (1.8, 0), BY_CUDNN: (1, 0.9),
    BY_CUDNN + ROTATED: (1, 0), CHAIN: (1, 1), CHAIN + ROTATED: (1.01, 0),
}  # fmt: skip


def records(suite, names=PARTS, more=None):
    found = []
    for tokens, attending in ATTENDING.items():
        batch = max(1, 16384 // tokens)
        for name, (times, rotations) in {**names, **(more or {})}.items():
            passes = batch * tokens / 16384
            seconds = times * attending + rotations * ROTATING * passes
            record = measurement(name, seconds, tokens, suite, "32/8 heads", flops=1e9, rounds=30)
            record["shape"]["batch"] = batch
            if name == CHAIN:
                ours = attending + 0.9 * ROTATING * passes
                record["beside_ropekit"] = {"median": seconds / ours, "low": seconds / ours - 0.012,
                                            "high": seconds / ours + 0.012}  # fmt: skip
            found.append(record)
    return found


DETERMINISTIC = {"ropekit + flash deterministic": (2.5, 2)}
TILES = {IN_TILES: (1.5, 0.5), IN_TILES + ROTATED: (1.2, 0)}


@pytest.fixture(scope="module")
def both(make):
    forward = records("attention", more=TILES)
    return make(forward + records("attention-backward", more=DETERMINISTIC), "NVIDIA H100")


def test_x():
    pass
