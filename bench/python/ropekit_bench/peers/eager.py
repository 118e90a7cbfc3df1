"""Rotation, append and attention as a PyTorch user writes it: naive makes cos and sin in every call, cached
keeps them."""

import torch
import torch._dynamo

from ropekit_bench.cases.append import NORM
from ropekit_bench.cases.base import nbytes
from ropekit_bench.peers import is_compiled, require
from ropekit_bench.peers.sdpa import attend_all, make_masks


def turn(x, interleaved):
    """Each pair (a, b) as (-b, a)."""
    if interleaved:
        return torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2)
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def rotate(x, cos, sin, interleaved):
    return x * cos + turn(x, interleaved) * sin


def make_table(positions, inv_freq, interleaved, dtype):
    """cos and sin, [batch, token, 1, rotary_dim]."""
    angles = positions[..., None].float() * inv_freq
    angles = angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)
    return angles.cos().to(dtype)[:, :, None], angles.sin().to(dtype)[:, :, None]


def cached(q, k, cos, sin, interleaved):
    return rotate(q, cos, sin, interleaved), None if k is None else rotate(k, cos, sin, interleaved)


def naive(q, k, positions, inv_freq, interleaved):
    return cached(q, k, *make_table(positions, inv_freq, interleaved, q.dtype), interleaved)


def norm(x, weight):
    """Llama's RMS norm of the first elements of each head."""
    part = x[..., : len(weight)].float()
    part = part * torch.rsqrt(part.square().mean(-1, keepdim=True) + NORM["eps"])
    found = weight * part.to(x.dtype)
    return found if len(weight) == x.shape[-1] else torch.cat((found, x[..., len(weight) :]), -1)


def window(x, offset, cos, sin, interleaved):
    """Rotates a part of each head."""
    end = offset + cos.shape[-1]
    turned = rotate(x[..., offset:end], cos, sin, interleaved)
    if turned.shape == x.shape:
        return turned
    return torch.cat((x[..., :offset], turned, x[..., end:]), -1)


def put(cache, x, slots, scale):
    """x of each token to its slot, in the cache's type; PyTorch scatters bytes, no fp8."""
    rows = cache.flatten(0, 1)
    if cache.dtype.itemsize > 1:
        rows[slots] = x.to(cache.dtype)
    else:
        largest = torch.finfo(cache.dtype).max
        x = (x.float() / scale).clamp(-largest, largest).to(cache.dtype)
        rows.view(torch.uint8)[slots] = x.view(torch.uint8)


def append(tensors, weights, caches, slots, scale, cos, sin, offsets, interleaved):
    """Norm, rotation and store; q's result."""
    q, k, v = tensors
    for i, weight in enumerate(weights):
        if weight is not None:
            q, k = (norm(q, weight), k) if i == 0 else (q, norm(k, weight))
    q, k = (window(x, offset, cos, sin, interleaved) for x, offset in zip((q, k), offsets, strict=True))
    put(caches[0], k, slots, scale)
    if v is not None:
        put(caches[1], v, slots, scale)
    return q


def move(cache, slots, scale, cos, sin, interleaved, dtype):
    """Keys rotated in their pages."""
    rows = cache.flatten(0, 1)
    if cache.dtype.itemsize > 1:
        k = rows[slots]
    else:
        k = rows.view(torch.uint8)[slots].view(cache.dtype).to(dtype) * scale.to(dtype)
    put(cache, rotate(k, cos, sin, interleaved), slots, scale)


def turn_and_attend(sequences, tables, masks, window, rotates_k, interleaved):
    """Rotation and attention of groups of sequences."""
    found = []
    for (q, k, v), (cos, sin) in zip(sequences, tables, strict=True):
        k = rotate(k, cos, sin, interleaved) if rotates_k else k
        found.append((rotate(q, cos, sin, interleaved), k, v))
    return attend_all(found, masks, window)


class adapter:
    table_bytes = 0

    def __init__(self, name, tool):
        self.kernel = self.name = name
        self.is_naive = name.endswith("naive")
        self.function = naive if self.is_naive else cached
        self.prepared = lambda function: function
        if is_compiled(name):
            self.kernel = f"torch.compile({self.function.__name__}, dynamic=False)"
            torch._dynamo.config.fail_on_recompile_limit_hit = True  # it would run eagerly instead
            self.function = torch.compile(self.function, dynamic=False)
            self.prepared = lambda function: torch.compile(function, dynamic=False)

    def prepare(self, case):
        constants = (
            (case.positions, case.inv_freq)
            if self.is_naive
            else make_table(case.positions, case.inv_freq, case.interleaved, case.dtype)
        )
        self.table_bytes = 0 if self.is_naive else nbytes(constants)
        inputs, function, interleaved = case.inputs, self.function, case.interleaved
        return lambda slot: function(*inputs[slot], *constants, interleaved)

    def prepare_append(self, case):
        require(not self.is_naive, "appends with cached tables alone")
        tables = make_table(case.positions, case.inv_freq, case.interleaved, case.dtype)
        cos, sin = (t.flatten(0, 1) for t in tables)
        self.table_bytes, s = nbytes((cos, sin)), case.shape
        offsets = s["rotary_offset"], s["k_rotary_offset" if s["k_head_dim"] else "rotary_offset"]
        calls = [(case.tensors(i), case.caches(i)) for i in range(case.sets)]
        if case.moves:
            fixed = case.slots, case.scale, cos, sin, case.interleaved, case.dtype
            moved = self.prepared(move)
            return lambda slot: moved(calls[slot][1][0], *fixed)
        fixed = case.slots, case.scale, cos, sin, offsets, case.interleaved
        self.kernel = f"{self.name}: norm, rotation, indexed store"
        called = self.prepared(append)

        def run(slot):
            tensors, caches = calls[slot]
            return called(tensors, case.weights, caches, *fixed)

        return run

    def attending(self, case):
        """Rotation and attention of sequences."""
        require(not self.is_naive, "attends with cached tables alone")
        require(case.rotates, "is compared where it rotates")
        cos, sin = make_table(case.positions, case.inv_freq, case.interleaved, case.dtype)
        cos, sin = (t[0].view(-1, 1, case.rotary_dim) for t in (cos, sin))
        self.table_bytes = nbytes((cos, sin))
        masks, interleaved, rotates_k = make_masks(case), case.interleaved, not case.cached
        self.kernel = f"{self.name}: rotation, scaled_dot_product_attention"
        called, tables, first = self.prepared(turn_and_attend), [], 0
        for q, _, _ in case.sequences(0):
            end = first + q.shape[0] * q.shape[1]
            tables.append(tuple(t[first:end].view(*q.shape[:2], 1, -1) for t in (cos, sin)))
            first = end
        return lambda sequences: called(sequences, tables, masks, case.window, rotates_k, interleaved)

    def prepare_attention(self, case):
        attend, calls = self.attending(case), [case.sequences(i) for i in range(case.sets)]
        return lambda slot: attend(calls[slot])

    def prepare_attention_backward(self, case):
        attend, leaves = self.attending(case), case.leaves
        self.kernel += ", autograd"

        def run(slot):
            out = attend(case.split(*leaves[slot]))
            return out, *torch.autograd.grad(out, leaves[slot], case.dout(slot).view(out.shape))

        return run
