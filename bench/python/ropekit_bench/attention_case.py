"""A case of attention: q, k and v of every implementation, where keys lie, and what is true of its rows."""

from functools import cached_property
from itertools import pairwise

import torch

from ropekit_bench.case import PAGE, SETS_MOST, TORCH_DTYPES, Declined, refusal, rotate, round_up
from ropekit_bench.slab_case import SlabCase

KNOWN = {"rotate", "keys", "mask", "window", "kv_cache", "page_size", "backward", "nondeterministic"}
# Relative error of a right row, in bounds of its rotation; a wrong row is off by its own size.
ALLOWED, ALLOWED_MOST = 2, 0.25
TOKENS_MOST = 4096  # that are rotated in fp64 at once


def attention_refusal(s):
    """Why nobody is compared on a shape; empty where they are."""
    a = s["attention"]
    whole = s["rotary_dim"] in (0, s["head_dim"])
    if refusal(s) or not whole:
        return refusal(s) or "peers are compared on whole heads alone"
    if a.keys() - KNOWN or a["mask"] != "causal" or a.get("kv_cache") not in (None, "table"):
        return "peers are compared on causal masks, windows, tensors and tables of pages alone"
    if a["rotate"] != ("q" if "kv_cache" in a else "qk") or s["position_ids"] != "none":
        return "peers are compared where keys in tensors rotate, and those in pages have rotated"
    return ""


class AttentionCase(SlabCase):
    """Sets of q, k and v lie in `source`, results in `target`. Pages lie in order, so that the keys of
    a sequence are a tensor too, for those that have no pages."""

    operation = "attention"
    more_inputs, more_outputs = (), ()  # shapes and types

    def __post_init__(self):
        s, a = self.shape, self.shape["attention"]
        if attention_refusal(s):
            raise Declined(attention_refusal(s))
        self.dtype = TORCH_DTYPES[s["dtype"]]
        self.rotary_dim, self.interleaved = s["head_dim"], s["pairing_in"] == "interleaved"
        self.backward, self.cached = False, "kv_cache" in a
        self.window, self.keys = a.get("window", 0), a["keys"]
        self.batch, self.tokens, self.count = s["batch"], s["tokens"], s["batch"] * s["tokens"]
        self.boundaries = s.get("cu_seqlens") or [i * self.tokens for i in range(self.batch + 1)]
        self.q_lengths = [b - a for a, b in pairwise(self.boundaries)]
        self.k_lengths = [self.keys if self.cached else m for m in self.q_lengths]
        self.page_size = a.get("page_size", 1)
        self.pages_each = -(-self.keys // self.page_size)
        self.rows = self.keys
        rows = self.batch * self.pages_each * self.page_size if self.cached else self.count
        dim, q_heads, k_heads = s["head_dim"], s["q_heads"], s["k_heads"]
        queries, keys = ((self.count, q_heads, dim), self.dtype), ((rows, k_heads, dim), self.dtype)
        self.source_views, source = self._lay_out(queries, keys, keys, *self.more_inputs)
        self.target_views, target = self._lay_out(queries, *self.more_outputs)
        self.pitch = round_up(max(source, target, self.floor_bytes), PAGE)
        self.sets = min(2 * self.cache_bytes // (2 * self.floor_bytes) + 1, SETS_MOST) if self.cold else 1
        self._fill()

    def seen(self, m, n):
        """Keys that the queries of a sequence see, and pairs of both."""
        own = torch.arange(n - m, n, dtype=torch.float64) + 1
        each = own.clamp_max(self.window) if self.window else own
        return min(n, m - 1 + self.window) if self.window and m else n if m else 0, each.sum().item()

    @property
    def floor_bytes(self):
        """Half of what must be read and written: a copy reads and writes as many."""
        s = self.shape
        keys = sum(self.seen(m, n)[0] for m, n in zip(self.q_lengths, self.k_lengths, strict=True))
        elements = self.count * s["q_heads"] + keys * s["k_heads"]
        return round_up(elements * s["head_dim"] * self.dtype.itemsize, 16)

    @property
    def flops(self):
        pairs = sum(self.seen(m, n)[1] for m, n in zip(self.q_lengths, self.k_lengths, strict=True))
        return 4 * self.shape["head_dim"] * self.shape["q_heads"] * pairs

    def refresh(self):
        self.target[: self.pitch] = 255  # a NaN in every type
        self._restore(0)

    def out(self, slot):
        return self._at(self.target, slot, self.target_views[0])

    def sequences(self, slot):
        """q, k and v of each group of sequences that are alike, [sequence, token, head, dim]."""
        return self.split(*self.tensors(slot))

    @cached_property
    def rotated_data(self):
        """q and, where keys are tensors, k of every set, rotated in fp64 and rounded."""
        return [self.turned_tokens(x, 1) for x in self.drawn[: 1 if self.cached else 2]]

    def rotated_tensors(self):
        """q, k and v of each set as they are without a rotation: q and k are memory of their own."""
        found = [self.tensors(slot) for slot in range(self.sets)]
        count = len(self.rotated_data)
        return [[*(x.clone() for x in self.rotated_data), *tensors[count:]] for tensors in found]

    def turned_tokens(self, x, direction):
        """x [token, head, dim] by the angles of its tokens' positions, or back by -1."""
        frequencies = direction * self.frequencies().to(x.device)
        parts = []
        for rows, at in zip(x.split(TOKENS_MOST), self.positions[0].split(TOKENS_MOST), strict=True):
            angles = at[:, None, None].double() * frequencies
            parts.append(rotate(rows.double(), angles, self.interleaved, self.interleaved).to(x.dtype))
        return torch.cat(parts)

    def turned_back(self, found):
        """What a run on rotated tensors is checked by."""
        return found

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
    def table(self):
        """Pages of each sequence."""
        pages = torch.arange(self.batch * self.pages_each, device=self.device)
        return pages.view(self.batch, self.pages_each)

    def angles(self, x, first):
        """The rotation, in fp64, of tokens from a position on."""
        positions = torch.arange(first, first + len(x), dtype=torch.float64, device=x.device)
        angles = positions[:, None, None] * self.frequencies().to(x.device)
        return rotate(x, angles, self.interleaved, self.interleaved)

    def truth(self, sequence, row):
        """A query's row in fp64, [head, dim]."""
        first, m, n = self.boundaries[sequence], self.q_lengths[sequence], self.k_lengths[sequence]
        begin = sequence * self.pages_each * self.page_size if self.cached else first
        q, k, v = self.drawn
        own = n - m + row
        start = max(0, own + 1 - self.window) if self.window else 0
        q = self.angles(q[first + row : first + row + 1].double(), own)[0]
        k, v = (x[begin + start : begin + own + 1].double() for x in (k, v))
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
