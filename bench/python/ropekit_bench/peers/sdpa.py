"""PyTorch's scaled_dot_product_attention, by a backend of its own choice or a named one. It has no pages."""

import contextlib

import torch
import torch.utils.deterministic
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from ropekit_bench.peers import require
from ropekit_bench.peers.chain import DETERMINISTIC, Chain

BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
MASK_MOST = 1 << 30
CAUSAL = "causal"  # what is_causal says


def make_mask(case, m, n):
    """What attention is told: CAUSAL, None for all keys, or a mask."""
    if m == 1 or not case.causal:
        return None
    if not case.window:
        return CAUSAL if m == n else causal_lower_right(m, n)
    require(m * n <= MASK_MOST, "a window is a mask of a byte a pair, above 1 GiB")
    own = torch.arange(n - m, n, device=case.device)[:, None]
    keys = torch.arange(n, device=case.device)
    return (keys <= own) & (keys > own - case.window)


def attend(q, k, v, mask, window):
    """q, k and v are [sequence, token, head, dim], the result too."""
    if q.shape[1] == 1 and window:
        k, v = k[:, -window:], v[:, -window:]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    causal, grouped = mask is CAUSAL, q.shape[1] != k.shape[1]
    mask = None if causal else mask
    found = scaled_dot_product_attention(q, k, v, mask, is_causal=causal, enable_gqa=grouped)
    return found.transpose(1, 2)


def attend_all(sequences, masks, window):
    """One call for those that are alike, and one result in the order of tokens."""
    found = [attend(*x, mask, window) for x, mask in zip(sequences, masks, strict=True)]
    return found[0] if len(found) == 1 else torch.cat(found, 1)


def make_masks(case):
    return [make_mask(case, q.shape[1], k.shape[1]) for q, k, _ in case.sequences(0)]


@contextlib.contextmanager
def deterministic(asked):
    """PyTorch's algorithms that always give the same bits, where they are asked for."""
    filled, torch.utils.deterministic.fill_uninitialized_memory = (
        torch.utils.deterministic.fill_uninitialized_memory,
        False,
    )
    torch.use_deterministic_algorithms(asked)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = filled


class adapter(Chain):
    def __init__(self, name, tool):
        super().__init__(name, tool)
        own = name.removeprefix("ropekit + ").removesuffix(DETERMINISTIC)
        self.backend = BACKENDS.get(own)
        chosen = "" if self.backend is None else f" by {self.backend.name}"
        self.attention = f"scaled_dot_product_attention{chosen}"

    def select(self):
        return contextlib.nullcontext() if self.backend is None else sdpa_kernel(self.backend)

    def attending(self, case, q, k, v):
        masks, sequences = make_masks(case), case.split(q, k, v)

        def run():
            with self.select():
                return attend_all(sequences, masks, case.window)

        return run

    def gradients(self, case, q, k, v, dout):
        masks, leaves = make_masks(case), [x.detach().requires_grad_() for x in (q, k, v)]

        def run():
            with self.select(), deterministic(self.is_deterministic):
                out = attend_all(case.split(*leaves), masks, case.window)
                return out, *torch.autograd.grad(out, leaves, dout.view(out.shape))

        return run
