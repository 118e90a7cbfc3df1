"""Cases of attention, and of attention and its backward: q, k and v, where keys lie, and what is true."""

from functools import cached_property
from itertools import pairwise, product

import torch

from ropekit_bench.cases.base import Case, Declined, refusal, rotate, round_up

KNOWN = {"rotate", "keys", "mask", "window", "kv_cache", "page_size", "backward", "nondeterministic"}
MASKS = ("causal", "full")
# Relative error of a right row, in bounds of its rotation; a wrong row is off by its own size.
ALLOWED, ALLOWED_MOST = 2, 0.25
TOKENS_MOST = 4096  # that are rotated in fp64 at once
PAIRS_MOST = 1 << 24  # queries and keys whose weights are made at once in fp64
NAMES = ("out", "dq", "dk", "dv")


def attention_refusal(s):
    """Why nobody is compared on a shape; empty where they are."""
    a = s["attention"]
    whole = s["rotary_dim"] in (0, s["head_dim"])
    if refusal(s) or not whole:
        return refusal(s) or "peers are compared on whole heads alone"
    is_known = a["mask"] in MASKS and a.get("kv_cache") in (None, "table")
    if a.keys() - KNOWN or not is_known or (a["mask"] == "full" and "window" in a):
        return "peers are compared on causal and full masks, windows, tensors and tables of pages alone"
    if a["rotate"] not in (("q",) if "kv_cache" in a else ("qk", "none")) or s["position_ids"] != "none":
        return "peers are compared where q rotates, and k unless it has, or where both have"
    return ""


class Attention(Case):
    """q, k and v are inputs. Pages lie in order, so that the keys of a sequence are a tensor too, for those
    that have no pages. run(slot) gives out."""

    operation = "attention"
    refusal = staticmethod(attention_refusal)

    def _prepare(self):
        s, a = self.shape, self.shape["attention"]
        self.cached, self.window, self.keys = "kv_cache" in a, a.get("window", 0), a["keys"]
        self.causal, self.rotates = a["mask"] == "causal", a["rotate"] != "none"
        self.batch, self.tokens, self.count = s["batch"], s["tokens"], s["batch"] * s["tokens"]
        self.boundaries = s.get("cu_seqlens") or [i * self.tokens for i in range(self.batch + 1)]
        self.q_lengths = [b - a for a, b in pairwise(self.boundaries)]
        self.k_lengths = [self.keys if self.cached else m for m in self.q_lengths]
        self.page_size = a.get("page_size", 1)
        self.pages_each = -(-self.keys // self.page_size)
        self.rows = self.keys

    def _queries(self):
        return (self.count, self.shape["q_heads"], self.shape["head_dim"]), self.dtype

    def _keys(self):
        rows = self.batch * self.pages_each * self.page_size if self.cached else self.count
        return (rows, self.shape["k_heads"], self.shape["head_dim"]), self.dtype

    def _sources(self):
        return [self._queries(), self._keys(), self._keys()]

    def _targets(self):
        return [self._queries()]

    @property
    def set_bytes(self):
        return 2 * self.floor_bytes

    def seen(self, m, n):
        """Keys that the queries of a sequence see, and pairs of both."""
        if not self.causal:
            return n if m else 0, m * n
        own = torch.arange(n - m, n, dtype=torch.float64) + 1
        each = own.clamp_max(self.window) if self.window else own
        return min(n, m - 1 + self.window) if self.window and m else n if m else 0, each.sum().item()

    @property
    def floor_bytes(self):
        s = self.shape
        keys = sum(self.seen(m, n)[0] for m, n in zip(self.q_lengths, self.k_lengths, strict=True))
        elements = self.count * s["q_heads"] + keys * s["k_heads"]
        return round_up(elements * s["head_dim"] * self.dtype.itemsize, 16)

    @property
    def flops(self):
        pairs = sum(self.seen(m, n)[1] for m, n in zip(self.q_lengths, self.k_lengths, strict=True))
        return 4 * self.shape["head_dim"] * self.shape["q_heads"] * pairs

    def _draw(self, generator):
        """On the device: a thread of a CPU takes a second for the largest."""
        own = torch.Generator(self.device).manual_seed(self.seed)
        self.drawn = [
            torch.empty(shape, dtype=self.dtype, device=self.device).uniform_(-1, 1, generator=own)
            for _, shape, _ in self.source_views
        ]

    def out(self, slot):
        return self._at(self.target, slot, self.target_views[0])

    def sequences(self, slot):
        """q, k and v of each group of sequences that are alike, [sequence, token, head, dim]."""
        return self.split(*self.tensors(slot))

    def split(self, q, k, v):
        if "cu_seqlens" in self.shape:
            return [tuple(x[a:b][None] for x in (q, k, v)) for a, b in pairwise(self.boundaries)]
        k, v = (x.unflatten(0, (self.batch, -1))[:, : self.keys] for x in (k, v))
        return [(q.unflatten(0, (self.batch, -1)), k, v)]

    @property
    def positions(self):
        """Of queries, in the order of tokens, as one row."""
        found = [
            torch.arange(n - m, n, device=self.device)
            for m, n in zip(self.q_lengths, self.k_lengths, strict=True)
        ]
        return torch.cat(found)[None]

    def numbers(self, values):
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    @cached_property
    def boundary_list(self):
        return self.numbers(self.boundaries)

    @cached_property
    def length_list(self):
        return self.numbers(self.k_lengths)

    @cached_property
    def page_table(self):
        """Pages of each sequence."""
        pages = torch.arange(self.batch * self.pages_each, device=self.device)
        return pages.view(self.batch, self.pages_each)

    def angles(self, x, first, sign=1):
        """The rotation, in fp64, of tokens from a position on."""
        if not self.rotates:
            return x
        positions = torch.arange(first, first + len(x), dtype=torch.float64, device=x.device)
        angles = sign * positions[:, None, None] * self.frequencies().to(x.device)
        return rotate(x, angles, self.interleaved, self.interleaved)

    def held(self, first, last):
        """Keys and values of some places in fp64."""
        return [x[first:last].double() for x in self.drawn[1:3]]

    def truth(self, sequence, row):
        """A query's row in fp64, [head, dim]."""
        first, m, n = self.boundaries[sequence], self.q_lengths[sequence], self.k_lengths[sequence]
        begin = sequence * self.pages_each * self.page_size if self.cached else first
        q, own = self.drawn[0], n - m + row
        start = max(0, own + 1 - self.window) if self.window else 0
        end = own + 1 if self.causal else n
        q = self.angles(q[first + row : first + row + 1].double(), own)[0]
        k, v = self.held(begin + start, begin + end)
        k = k if self.cached else self.angles(k, start)
        q = q.unflatten(0, (self.shape["k_heads"], -1))
        scores = torch.einsum("kgd,nkd->kgn", q, k) / self.shape["head_dim"] ** 0.5
        return torch.einsum("kgn,nkd->kgd", scores.softmax(-1), v).flatten(0, 1)

    def sample(self):
        """Sequences and rows of theirs: the first, the last, and one between."""
        last = len(self.q_lengths) - 1
        return [
            (i, row)
            for i in sorted({0, last})
            for row in sorted({0, self.q_lengths[i] // 2, self.q_lengths[i] - 1})
        ]

    def check(self, run):
        self.refresh()
        out = run(0).reshape(self.count, self.shape["q_heads"], -1)
        allowed = min(ALLOWED * self.bound(), ALLOWED_MOST)
        elements, worst, most = 0, 0.0, 0.0
        for sequence, row in self.sample():
            truth = self.truth(sequence, row)
            off = out[self.boundaries[sequence] + row].double() - truth
            ratio = (off.norm(dim=-1) / truth.norm(dim=-1)).max().item() / allowed
            worst = max(worst, ratio) if ratio == ratio else float("inf")
            most, elements = max(most, off.abs().max().item()), elements + truth.numel()
        if not worst <= 1:
            raise Declined(f"wrong: off by {worst:.3g} of what is allowed")
        return {"elements": elements, "max_error": most, "worst": worst}


class AttentionBackward(Attention):
    """dout is an input too. run(slot) gives out, dq, dk and dv, [token, head, dim] or any shape of as many
    elements."""

    operation = "attention_backward"

    def _sources(self):
        return [*super()._sources(), self._queries()]

    def _targets(self):
        return [self._queries(), *super()._sources()]

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
        seen = (keys <= own) | (not self.causal)
        seen = seen & (keys > own - self.window) if self.window else seen
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
