"""ropekit's rope_apply, then PyTorch's scaled_dot_product_attention by a backend of its own choice or a named
one. It has no pages: keys in pages are read as the tensor that the case lets them be."""

import contextlib
import ctypes

import torch
import torch.utils.deterministic
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from ropekit_bench.library import Plan, Tensor
from ropekit_bench.peers import require
from ropekit_bench.peers.capi import attention_batch, dense

BACKENDS = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
DETERMINISTIC = " deterministic"
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


def in_place(case, x):
    """A gradient [token, head, dim], whose strides are autograd's, as a tensor that is rotated in place."""
    x = x.unflatten(0, (case.batch, case.tokens))
    strides = (ctypes.c_int64 * 4)(*x.stride())
    return Tensor(in_=x.data_ptr(), out=x.data_ptr(), heads=x.shape[2], in_stride=strides, out_stride=strides)


class adapter:
    table_bytes = 0

    def __init__(self, name, tool):
        own = name.removeprefix("ropekit + ")
        self.library, self.backend = tool.library, BACKENDS.get(own.removesuffix(DETERMINISTIC))
        self.is_deterministic = own.endswith(DETERMINISTIC)

    def select(self):
        return contextlib.nullcontext() if self.backend is None else sdpa_kernel(self.backend)

    def begin(self, case, direction="forward"):
        """The plan of a case's rotation."""
        return Plan(self.library, "rotation", {**case.shape, "direction": direction})

    @property
    def attention(self):
        chosen = "" if self.backend is None else f" by {self.backend.name}"
        return f"scaled_dot_product_attention{chosen}"

    def prepare_attention(self, case):
        require(not self.is_deterministic, "attention without its backward always is")
        plan, masks = self.begin(case), make_masks(case)
        self.kernel = f"{plan.kernel}, {self.attention}"
        between = [torch.empty_like(x) for x in case.tensors(0)[: 1 if case.cached else 2]]
        calls = []
        for slot in range(case.sets):
            args = attention_batch(case)
            args.position_offset = case.keys - case.tokens if case.cached else 0
            args.q, *keys = (dense(x, y) for x, y in zip(case.tensors(slot), between, strict=False))
            args.k = keys[0] if keys else Tensor()
            calls.append((plan.call(args), self.rotated_sequences(case, slot, between)))

        def run(slot):
            rotate, sequences = calls[slot]
            rotate()
            with self.select():
                return attend_all(sequences, masks, case.window)

        return run

    def prepare_attention_backward(self, case):
        """Gradients by autograd; those of rotated q and k are rotated back."""
        plan, back, masks = self.begin(case), self.begin(case, "transpose"), make_masks(case)
        self.kernel = f"{plan.kernel}, {self.attention}, autograd{', deterministic' * self.is_deterministic}"
        calls = []
        for slot in range(case.sets):
            q, k, v = case.tensors(slot)
            between = [torch.empty_like(x).requires_grad_() for x in (q, k)]  # autograd keeps each layer's
            args = attention_batch(case)
            args.q, args.k = (dense(x, y) for x, y in zip((q, k), between, strict=True))
            calls.append((plan.call(args), (*between, v.detach().requires_grad_()), case.dout(slot)))

        def run(slot):
            rotate, leaves, dout = calls[slot]
            rotate()
            with self.select(), deterministic(self.is_deterministic):
                out = attend_all(case.split(*leaves), masks, case.window)
                dq, dk, dv = torch.autograd.grad(out, leaves, dout.view(out.shape))
            args = attention_batch(case)
            args.q, args.k = (in_place(case, x) for x in (dq, dk))
            back.call(args)()
            return out, dq, dk, dv

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
