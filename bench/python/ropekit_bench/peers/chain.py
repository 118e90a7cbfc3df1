"""ropekit's rope_apply, then attention of another package; that alone where a token is decoded. Keys in pages
are read as the tensor that the case lets them be, but by FlashAttention 3."""

import ctypes

import torch

from ropekit_bench.library import Plan, Tensor
from ropekit_bench.peers import require
from ropekit_bench.peers.capi import attention_batch, dense

DETERMINISTIC = " deterministic"


def in_place(case, x):
    """A gradient [token, head, dim], whose strides are its maker's, as a tensor that is rotated in place."""
    x = x.unflatten(0, (case.batch, case.tokens))
    strides = (ctypes.c_int64 * 4)(*x.stride())
    return Tensor(in_=x.data_ptr(), out=x.data_ptr(), heads=x.shape[2], in_stride=strides, out_stride=strides)


class Chain:
    """Of a package: `attention` names its function, attending(case, q, k, v) gives a function that attends
    once, gradients(case, q, k, v, dout) one that gives out, dq, dk and dv. Tensors are [token, head, dim]."""

    table_bytes = 0
    attention = ""

    def __init__(self, name, tool):
        self.library, self.is_deterministic = tool.library, name.endswith(DETERMINISTIC)

    def begin(self, case, direction="forward"):
        """The plan of a case's rotation."""
        return Plan(self.library, "rotation", {**case.shape, "direction": direction})

    def prepare_attention(self, case):
        require(not self.is_deterministic, "attention without its backward always is")
        return self.chain(case) if case.rotates else self.alone(case)

    def alone(self, case):
        self.kernel = self.attention
        calls = [self.attending(case, *case.tensors(slot)) for slot in range(case.sets)]
        return lambda slot: calls[slot]()

    def prepare_decode(self, case):
        """Attention alone, of queries and keys that were rotated and stored before."""
        require(not self.is_deterministic, "attention without its backward always is")
        require(not case.is_narrow, "caches of q's type alone")
        q = case.rotated_queries
        self.kernel = self.attention
        calls = [self.attending(case, q, *case.tensors(slot)[1:]) for slot in range(case.sets)]
        return lambda slot: calls[slot]()

    def chain(self, case):
        plan = self.begin(case)
        self.kernel = f"{plan.kernel}, {self.attention}"
        between = [torch.empty_like(x) for x in case.tensors(0)[: 1 if case.cached else 2]]
        calls = []
        for slot in range(case.sets):
            tensors = case.tensors(slot)
            args = attention_batch(case)
            args.position_offset = case.keys - case.tokens if case.cached else 0
            args.q, *keys = (dense(x, y) for x, y in zip(tensors, between, strict=False))
            args.k = keys[0] if keys else Tensor()
            attend = self.attending(case, *between, *tensors[len(between) :])
            calls.append((plan.call(args), attend))

        def run(slot):
            rotate, attend = calls[slot]
            rotate()
            return attend()

        return run

    def prepare_attention_backward(self, case):
        """Gradients of rotated q and k are rotated back."""
        require(case.rotates, "its backward is compared where q and k rotate")
        plan, back = self.begin(case), self.begin(case, "transpose")
        order = ", deterministic" * self.is_deterministic
        self.kernel = f"{plan.kernel}, {self.attention} and its gradients{order}"
        calls = []
        for slot in range(case.sets):
            q, k, v = case.tensors(slot)
            between = [torch.empty_like(x) for x in (q, k)]  # a model keeps each layer's
            args = attention_batch(case)
            args.q, args.k = (dense(x, y) for x, y in zip((q, k), between, strict=True))
            calls.append((plan.call(args), self.gradients(case, *between, v, case.dout(slot))))

        def run(slot):
            rotate, differentiate = calls[slot]
            rotate()
            out, dq, dk, dv = differentiate()
            args = attention_batch(case)
            args.q, args.k = (in_place(case, x) for x in (dq, dk))
            back.call(args)()
            return out, dq, dk, dv

        return run
