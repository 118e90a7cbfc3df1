"""ropekit's rope_apply, then PyTorch's scaled_dot_product_attention by a backend of its own choice or a named
one. It has no pages: keys in pages are read as the tensor that the case lets them be."""

import contextlib

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from ropekit_bench.attention_library import rope_arguments, rotated
from ropekit_bench.library import Plan
from ropekit_bench.peers import require

BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
MASK_MOST = 1 << 30


def make_mask(case, m, n):
    """What attention is told, beside is_causal where that says it."""
    if m == 1 or (m == n and not case.window):
        return None
    if not case.window:
        return causal_lower_right(m, n)
    require(m * n <= MASK_MOST, "a window is a mask of a byte a pair, above 1 GiB")
    own = torch.arange(n - m, n, device=case.device)[:, None]
    keys = torch.arange(n, device=case.device)
    return (keys <= own) & (keys > own - case.window)


def attend(q, k, v, mask, window):
    """q, k and v are [sequence, token, head, dim], the result too."""
    m = q.shape[1]
    if m == 1 and window:
        k, v = k[:, -window:], v[:, -window:]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    causal, grouped = mask is None and m > 1, q.shape[1] != k.shape[1]
    found = scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=grouped)
    return found.transpose(1, 2)


def attend_all(sequences, masks, window):
    """One call for those that are alike, and one result in the order of tokens."""
    found = [attend(*x, mask, window) for x, mask in zip(sequences, masks, strict=True)]
    return found[0] if len(found) == 1 else torch.cat(found, 1)


def make_masks(case):
    return [make_mask(case, q.shape[1], k.shape[1]) for q, k, _ in case.sequences(0)]


class adapter:
    table_bytes = 0

    def __init__(self, name, tool):
        self.library, self.backend = tool.library, BACKENDS.get(name.removeprefix("ropekit + "))

    def prepare_attention(self, case):
        plan, masks = Plan(self.library, case.shape), make_masks(case)
        stream = torch.cuda.current_stream().cuda_stream if case.device.type == "cuda" else None
        between = [torch.empty_like(x) for x in case.tensors(0)[: 1 if case.cached else 2]]
        calls = []
        for slot in range(case.sets):
            args = rope_arguments(case, stream)
            args.position_offset = case.keys - case.tokens if case.cached else 0
            args.q, *keys = (rotated(x, y) for x, y in zip(case.tensors(slot), between, strict=False))
            args.k = keys[0] if keys else type(args.q)()
            calls.append((plan.call(args), self.rotated_sequences(case, slot, between)))
        chosen = "" if self.backend is None else f" by {self.backend.name}"
        self.kernel = f"{plan.kernel}, scaled_dot_product_attention{chosen}"
        select = contextlib.nullcontext if self.backend is None else lambda: sdpa_kernel(self.backend)

        def run(slot):
            rotate, sequences = calls[slot]
            rotate()
            with select():
                return attend_all(sequences, masks, case.window)

        return run

    def rotated_sequences(self, case, slot, between):
        found, first = [], 0
        for q, k, v in case.sequences(slot):
            both = []
            for x, y in zip((q, k), between, strict=False):
                end = first + q.shape[0] * q.shape[1]
                both.append(y[first:end].view(x.shape))
            found.append((both[0], both[1] if len(both) > 1 else k, v))
            first += q.shape[0] * q.shape[1]
        return found
