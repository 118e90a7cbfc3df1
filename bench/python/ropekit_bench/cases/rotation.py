"""A case of a rotation: q and k, whole heads or windows of them, out of place or in place."""

from functools import cached_property

import torch

from ropekit_bench.cases.base import Case, Declined, rotate, tensor_bytes

PERIOD = 1 << 18  # elements drawn before the data repeat


class Rotation(Case):
    """run(slot) gives windows of q and k; k is None without key heads."""

    operation = "rotation"

    def _prepare(self):
        s = self.shape
        self.q_shape = (s["batch"], s["tokens"], s["q_heads"], s["head_dim"])
        self.k_shape = (s["batch"], s["tokens"], s["k_heads"], s["k_head_dim"] or s["head_dim"])

    def _sources(self):
        return (self.q_shape, self.dtype), (self.k_shape, self.dtype)

    _targets = _sources

    @property
    def in_place(self):
        return self.shape["in_place"]

    @property
    def floor_bytes(self):
        s = self.shape
        if not self.in_place:
            return tensor_bytes(s)
        return (
            self.dtype.itemsize * self.rotary_dim * (s["q_heads"] + s["k_heads"]) * s["batch"] * s["tokens"]
        )

    def _draw(self, generator):
        period = (2 * torch.rand(PERIOD, generator=generator) - 1).to(self.dtype)
        self.drawn = []
        for _, shape, _ in self.source_views:
            count = shape.numel()
            self.drawn.append(period.repeat(-(-count // PERIOD))[:count].view(shape).to(self.device))

    def whole(self, slab, slot):
        """q and k of a set, [batch, token, head, dim]."""
        return self._views(slab, slot, self.source_views)

    def window(self, tensors):
        """The elements that rotate, of q and k."""
        q, k = tensors
        offset = self.shape["rotary_offset"]
        k_offset = self.shape["k_rotary_offset"] if self.shape["k_head_dim"] else offset
        return (
            q[..., offset : offset + self.rotary_dim],
            None if k is None else k[..., k_offset : k_offset + self.rotary_dim],
        )

    @cached_property
    def inputs(self):
        """Windows of q and k of each set."""
        return [self.window(self.whole(self.source, slot)) for slot in range(self.sets)]

    @property
    def is_whole(self):
        return self.rotary_dim == self.q_shape[3] and self.rotary_dim == self.k_shape[3]

    def truth(self, x, tokens):
        """The rotation of x[:, tokens] in fp64."""
        x = x[:, tokens].double().cpu()
        angles = self.positions[:, tokens].cpu().double()[..., None, None] * self.frequencies()
        return rotate(x, angles, self.interleaved, self.interleaved)

    def check(self, run):
        """Compares a run on fresh data with the truth; raises Declined where it is wrong."""
        self.refresh()
        tokens = self.sample()
        truths = [None if x is None else self.truth(x, tokens) for x in self.inputs[0]]
        outputs, elements, worst = run(0), 0, 0.0
        for truth, output in zip(truths, outputs, strict=True):
            if truth is None:
                continue
            error = (output[:, tokens].double().cpu() - truth).abs().max().item()
            worst = max(worst, error) if error == error else float("inf")
            elements += truth.numel()
        if not worst <= self.bound():
            raise Declined(f"wrong: off by {worst:.3g}, where {self.bound():.3g} is allowed")
        return {"elements": elements, "max_error": worst, "worst": worst / self.bound()}
