"""Rotation as a PyTorch user writes it: naive makes cos and sin in every call, cached keeps them."""

import torch
import torch._dynamo
import torch._functorch.config

from ropekit_bench.case import nbytes
from ropekit_bench.peers import is_compiled


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


class adapter:
    table_bytes = 0

    def __init__(self, name, tool):
        self.kernel = name
        self.is_naive = name.endswith("naive")
        self.function = naive if self.is_naive else cached
        if is_compiled(name):
            self.kernel = f"torch.compile({self.function.__name__}, dynamic=False)"
            torch._dynamo.config.fail_on_recompile_limit_hit = True  # it would run eagerly instead
            torch._functorch.config.donated_buffer = False  # a backward is timed again and again
            self.function = torch.compile(self.function, dynamic=False)

    def prepare(self, case):
        constants = (
            (case.positions, case.inv_freq)
            if self.is_naive
            else make_table(case.positions, case.inv_freq, case.interleaved, case.dtype)
        )
        self.table_bytes = 0 if self.is_naive else nbytes(constants)
        inputs, function, interleaved = case.inputs, self.function, case.interleaved
        if case.backward:
            return self.prepare_backward(case, constants)
        return lambda slot: function(*inputs[slot], *constants, interleaved)

    def prepare_backward(self, case, constants):
        """autograd.grad of a forward that ran before; the gradients are the case's tensors."""
        leaves = [
            tuple(x.detach().clone().requires_grad_() for x in pair if x is not None) for pair in case.inputs
        ]
        outputs = [self.function(q, *k or (None,), *constants, case.interleaved) for q, *k in leaves]

        def run(slot):
            result = [y for y in outputs[slot] if y is not None]
            gradients = [x for x in case.inputs[slot] if x is not None]
            found = torch.autograd.grad(result, leaves[slot], gradients, retain_graph=True)
            return found if len(found) == 2 else (*found, None)

        return run
