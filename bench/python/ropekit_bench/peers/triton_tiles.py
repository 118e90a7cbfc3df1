"""A kernel of attention in Triton that rotates keys again in each tile of queries that reads them, and the
same kernel on rotated inputs: what that costs, all else alike. It is of no package."""

import math

import torch
import triton
import triton.language as tl

from ropekit_bench.peers import require
from ropekit_bench.report.model import ROTATED

TURN = 1 << 32  # a phase is 32 bits of a turn, whose product with a position wraps as angles do


@triton.jit
def turned(x1, x2, positions, turns, APPROXIMATE: tl.constexpr):
    """Halves of heads [token, pair] by the angles of their positions."""
    angles = (positions[:, None] * turns[None, :]).to(tl.float32) * 1.4629180792671596e-09  # 2 pi / TURN
    if APPROXIMATE:  # by the special function unit; tl.sin is a function of some 30 instructions
        sin = tl.inline_asm_elementwise("sin.approx.ftz.f32 $0, $1;", "=f,f", [angles], tl.float32, True, 1)
        cos = tl.inline_asm_elementwise("cos.approx.ftz.f32 $0, $1;", "=f,f", [angles], tl.float32, True, 1)
    else:
        sin, cos = tl.sin(angles), tl.cos(angles)
    a, b = x1.to(tl.float32), x2.to(tl.float32)
    return (a * cos - b * sin).to(x1.dtype), (b * cos + a * sin).to(x1.dtype)


@triton.jit
def over_keys(total, most, sums, q1, q2, k, v, turns, rows, k_step, tokens, scale, first, last,
              HALF: tl.constexpr, KEYS: tl.constexpr, ROTATES: tl.constexpr, APPROXIMATE: tl.constexpr,
              MASKED: tl.constexpr):  # fmt: skip
    """Adds tiles of keys first..last - 1 to sums of values, of weights, and the largest score of each row."""
    pairs = tl.arange(0, HALF)
    for start in range(first, last, KEYS):
        keys = start + tl.arange(0, KEYS)
        there = keys[:, None] < tokens
        at = keys[:, None].to(tl.int64) * k_step + pairs[None, :]
        k1, k2 = tl.load(k + at, there, 0.0), tl.load(k + HALF + at, there, 0.0)
        if ROTATES:
            k1, k2 = turned(k1, k2, keys, turns, APPROXIMATE)
        scores = tl.dot(q1, tl.trans(k1))
        scores = tl.dot(q2, tl.trans(k2), scores) * scale
        if MASKED:
            scores = tl.where(keys[None, :] <= rows[:, None], scores, float("-inf"))
        above = tl.maximum(most, tl.max(scores, 1))
        weights, shrink = tl.exp2(scores - above[:, None]), tl.exp2(most - above)
        elements = tl.arange(0, 2 * HALF)
        values = tl.load(v + keys[:, None].to(tl.int64) * k_step + elements[None, :], there, 0.0)
        sums = sums * shrink + tl.sum(weights, 1)
        total = tl.dot(weights.to(values.dtype), values, total * shrink[:, None])
        most = above
    return total, most, sums


@triton.jit
def attend(q, k, v, out, turns, tokens, scale, q_heads, GROUP: tl.constexpr, HALF: tl.constexpr,
           ROTATES: tl.constexpr, APPROXIMATE: tl.constexpr, ROWS: tl.constexpr,
           KEYS: tl.constexpr):  # fmt: skip
    """A tile of queries of a head: programs of the most keys begin first."""
    tile, head = tl.num_programs(0) - 1 - tl.program_id(0), tl.program_id(1) % q_heads
    row = tl.program_id(1) // q_heads * tokens
    q_step, k_step = q_heads * 2 * HALF, q_heads // GROUP * 2 * HALF
    rows, pairs = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, HALF)
    place, there = row.to(tl.int64) * q_step + head * 2 * HALF, rows[:, None] < tokens
    at = place + rows[:, None].to(tl.int64) * q_step
    q1 = tl.load(q + at + pairs[None, :], there, 0.0)
    q2 = tl.load(q + at + HALF + pairs[None, :], there, 0.0)
    steps = tl.load(turns + pairs)
    if ROTATES:
        q1, q2 = turned(q1, q2, rows, steps, APPROXIMATE)
    own = row.to(tl.int64) * k_step + head // GROUP * 2 * HALF
    total = tl.zeros([ROWS, 2 * HALF], tl.float32)
    most, sums = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    whole = tile * ROWS // KEYS * KEYS
    total, most, sums = over_keys(total, most, sums, q1, q2, k + own, v + own, steps, rows, k_step, tokens,
                                  scale, 0, whole, HALF, KEYS, ROTATES, APPROXIMATE, False)  # fmt: skip
    last = tl.minimum((tile + 1) * ROWS, tokens)
    total, most, sums = over_keys(total, most, sums, q1, q2, k + own, v + own, steps, rows, k_step, tokens,
                                  scale, whole, last, HALF, KEYS, ROTATES, APPROXIMATE, True)  # fmt: skip
    total = (total / sums[:, None]).to(out.dtype.element_ty)
    tl.store(out + at + tl.arange(0, 2 * HALF)[None, :], total, there)


ROWS = 128
SIZES = [(64, 4, 3), (64, 8, 3), (128, 8, 2)]  # keys, warps, stages
tuned = triton.autotune(
    [triton.Config({"ROWS": ROWS, "KEYS": k}, num_warps=w, num_stages=s) for k, w, s in SIZES],
    key=["q_heads", "tokens", "ROTATES"],
)(attend)


class adapter:
    table_bytes = 0

    def __init__(self, name, tool):
        self.rotates = not name.endswith(ROTATED)
        self.kernel = f"{ROWS} queries, {'keys rotated in each tile' if self.rotates else 'no rotation'}"

    def prepare_attention(self, case):
        s, dim = case.shape, case.shape["head_dim"]
        plain = not (case.cached or case.window or case.interleaved or "cu_seqlens" in s)
        require(plain, "prompts of one length alone, half-split")
        require(dim in (64, 128) and case.dtype != torch.float32, "heads of 64 and 128 of 16 bits alone")
        tensors = [case.tensors(i) for i in range(case.sets)] if self.rotates else case.rotated_tensors()
        turns = (case.frequencies() * (TURN / (2 * math.pi))).round().to(torch.int64)
        turns = torch.where(turns >= TURN // 2, turns - TURN, turns).to(torch.int32).to(case.device)
        heads, scale = s["q_heads"], math.log2(math.e) / dim**0.5
        grid = -(-case.tokens // ROWS), case.batch * heads
        group, approximate = heads // s["k_heads"], case.device.type == "cuda"
        kernel, sizes = (tuned, {}) if approximate else (attend, {"ROWS": ROWS, "KEYS": 64})

        def run(slot):
            out = case.out(slot)
            kernel[grid](*tensors[slot], out, turns, case.tokens, scale, heads, GROUP=group, HALF=dim // 2,
                         ROTATES=self.rotates, APPROXIMATE=approximate, **sizes)  # fmt: skip
            return out

        return run
