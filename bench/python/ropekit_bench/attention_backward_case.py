"""A case of attention and its backward: the gradient of its result is given, those of q, k and v are made."""

from functools import cached_property
from itertools import product

import torch

from ropekit_bench.attention_case import ALLOWED, ALLOWED_MOST, AttentionCase
from ropekit_bench.case import Declined

PAIRS_MOST = 1 << 24  # queries and keys whose weights are made at once in fp64
NAMES = ("out", "dq", "dk", "dv")


class AttentionBackwardCase(AttentionCase):
    """run(slot) gives out, dq, dk and dv, [token, head, dim] or any shape of as many elements."""

    operation = "attention_backward"

    @property
    def more_inputs(self):
        return ((self.out_shape, self.dtype),)

    @property
    def more_outputs(self):
        s = self.shape
        keys = (self.count, s["k_heads"], s["head_dim"]), self.dtype
        return (self.out_shape, self.dtype), keys, keys

    @property
    def out_shape(self):
        return self.count, self.shape["q_heads"], self.shape["head_dim"]

    def tensors(self, slot):
        return super().tensors(slot)[:3]

    @property
    def floor_bytes(self):
        return 2 * super().floor_bytes  # each tensor has a gradient

    @property
    def flops(self):
        return 7 / 2 * super().flops  # five products beside the two

    def dout(self, slot):
        return self._at(self.source, slot, self.source_views[3])

    def results(self, slot):
        """Memory of out, dq, dk and dv."""
        return self._views(self.target, slot, self.target_views)

    @cached_property
    def leaves(self):
        """q, k and v of each set, of which autograd takes gradients."""
        return [[x.detach().requires_grad_() for x in self.tensors(slot)] for slot in range(self.sets)]

    def turned_back(self, found):
        out, *gradients = found
        shapes = [view[1] for view in self.target_views[1:]]
        *turned, dv = (x.detach().reshape(shape) for x, shape in zip(gradients, shapes, strict=True))
        return out, *(self.turned_tokens(x, -1) for x in turned), dv

    def turned(self, x, first):
        """x [token, ..., dim] rotated in fp64."""
        return self.angles(x.flatten(1, -2), first).view_as(x)

    def truth(self, sequence, head):
        """What the queries that read a head of k give in fp64, [token, head, dim], by autograd."""
        first, m = self.boundaries[sequence], self.q_lengths[sequence]
        group = self.shape["q_heads"] // self.shape["k_heads"]
        heads = slice(head * group, (head + 1) * group)
        q, k, v, dout = (x[first : first + m].double() for x in self.drawn)
        k, v = (x[:, head : head + 1].clone().requires_grad_() for x in (k, v))
        keys = self.turned(k, 0)
        fixed = keys.detach().requires_grad_()
        found, sums = [], [torch.zeros_like(k), torch.zeros_like(v)]
        step = max(1, PAIRS_MOST // (m * group))
        for start in range(0, m, step):
            part = q[start : start + step, heads].clone().requires_grad_()
            out = self.attended(self.turned(part, start), fixed, v, start)
            own = dout[start : start + step, heads]
            dq, *more = torch.autograd.grad(out, (part, fixed, v), own)
            found.append((out.detach(), dq))
            sums = [a + b for a, b in zip(sums, more, strict=True)]
        (dk,) = torch.autograd.grad(keys, k, sums[0])
        return [torch.cat(x) for x in zip(*found, strict=True)] + [dk, sums[1]]

    def attended(self, q, k, v, start):
        own = torch.arange(start, start + len(q), device=q.device)[:, None]
        keys = torch.arange(len(k), device=q.device)
        seen = (keys <= own) & ((keys > own - self.window) if self.window else keys >= 0)
        scores = torch.einsum("mgd,nd->mgn", q, k[:, 0]) / self.shape["head_dim"] ** 0.5
        weights = scores.masked_fill(~seen[:, None], float("-inf")).softmax(-1)
        return torch.einsum("mgn,nd->mgd", weights, v[:, 0])

    @cached_property
    def truths(self):
        """(sequence, head of k): of the first and the last of each."""
        last = len(self.q_lengths) - 1, self.shape["k_heads"] - 1
        return {at: self.truth(*at) for at in product(*(sorted({0, x}) for x in last))}

    def check(self, run):
        """Each row of a sampled head, beside its own size or, where it is small, that of the rows' mean."""
        self.refresh()
        shapes = [view[1] for view in self.target_views]
        results = [x.detach().reshape(shape) for x, shape in zip(run(0), shapes, strict=True)]
        allowed = min(ALLOWED * self.bound(), ALLOWED_MOST)
        elements, worst, most, where = 0, 0.0, 0.0, ""
        for (sequence, head), truths in self.truths.items():
            first, m = self.boundaries[sequence], self.q_lengths[sequence]
            for name, found, truth in zip(NAMES, results, truths, strict=True):
                count = truth.shape[1]
                off = found[first : first + m, head * count : (head + 1) * count].double() - truth
                size = truth.norm(dim=-1)
                size = size.clamp_min(size.square().mean().sqrt().item())
                ratio = (off.norm(dim=-1) / size).max().item() / allowed
                ratio = ratio if ratio == ratio else float("inf")
                worst, where = max((worst, where), (ratio, name))
                most, elements = max(most, off.abs().max().item()), elements + truth.numel()
        if not worst <= 1:
            raise Declined(f"wrong: {where} is off by {worst:.3g} of what is allowed")
        return {"elements": elements, "max_error": most, "worst": worst}
