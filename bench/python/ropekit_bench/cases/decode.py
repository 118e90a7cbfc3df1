"""A case of decode: new tokens, the pages that they are appended to and attend to, and what is true."""

from functools import cached_property

import torch

from ropekit_bench.cases.append import SCALE, STORED
from ropekit_bench.cases.attention import KNOWN, Attention, attention_refusal
from ropekit_bench.cases.base import round_up

STORES = {"k_store_dtype", "v_store_dtype", "k_scale", "v_scale"}


def decode_refusal(s):
    """Why nobody is compared on a shape; empty where they are."""
    a = s["attention"]
    if {a.get(f"{p}_store_dtype", s["dtype"]) for p in "kv"} - STORED.keys():
        return "peers are compared on caches of f32, f16, bf16 and e4m3"
    if {a.get("k_scale"), a.get("v_scale")} - {None, "tensor"}:
        return "peers are compared on one scale"
    of_head = {**s, "rotary_dim": 0, "in_place": True, "attention": {n: a[n] for n in a if n in KNOWN}}
    if a.keys() - KNOWN - STORES - {"decode", "v_in_k", "v_head_dim"}:
        return "peers are compared on masks, windows and tables of pages alone"
    return attention_refusal(of_head)


class Decode(Attention):
    """New k and v belong to the last keys in the pages, whose places hold them already: a peer that only
    attends finds them. run(slot) gives out."""

    operation = "decode"
    refusal = staticmethod(decode_refusal)

    def _prepare(self):
        super()._prepare()
        s, a = self.shape, self.shape["attention"]
        self.v_in_k, self.v_dim = "v_in_k" in a, a.get("v_head_dim", s["head_dim"])
        self.k_type, self.v_type = (STORED[a.get(f"{p}_store_dtype", s["dtype"])] for p in "kv")
        self.is_narrow = self.k_type.itemsize == 1
        self.scale = torch.full((1,), SCALE if self.is_narrow else 1.0, device=self.device)

    def _keys(self):
        return super()._keys()[0], self.k_type

    def _values(self):
        rows, heads, _ = self._keys()[0]
        return (rows, 0 if self.v_in_k else heads, self.v_dim), self.v_type

    def _sources(self):
        return [self._queries(), self._keys(), self._values()]

    def _targets(self):
        return [((*self._queries()[0][:2], self.v_dim), self.dtype)]

    @property
    def floor_bytes(self):
        s, dim = self.shape, self.shape["head_dim"]
        seen, item = self.batch * self.seen(self.tokens, self.keys)[0], self.dtype.itemsize
        total = self.count * s["q_heads"] * (dim + self.v_dim) * item
        for (_, heads, width), stored in (self._keys(), self._values()):
            total += heads * width * (seen * stored.itemsize + self.count * (stored.itemsize + item))
        return round_up(total // 2, 16)

    @property
    def flops(self):
        pairs = self.batch * self.seen(self.tokens, self.keys)[1]
        return 2 * (self.shape["head_dim"] + self.v_dim) * self.shape["q_heads"] * pairs

    def _draw(self, generator):
        super()._draw(generator)
        stored = zip(self.drawn[1:], (self.k_type, self.v_type), strict=True)
        self.drawn[1:] = [(x / self.scale.to(x.dtype)).to(dtype) for x, dtype in stored]

    def tensors(self, slot):
        """q, and keys and values in pages."""
        q, k, v = super().tensors(slot)
        return q, k, k[..., : self.v_dim] if self.v_in_k else v

    def held(self, first, last):
        k, v = (x[first:last].float().double() * self.scale for x in self.drawn[1:3])
        return k, k[..., : self.v_dim] if self.v_in_k else v

    def angles(self, x, first, sign=1):
        window = slice(self.shape["rotary_offset"], self.shape["rotary_offset"] + self.rotary_dim)
        turned = x.to(torch.float64, copy=True)
        turned[..., window] = super().angles(turned[..., window], first, sign)
        return turned

    @cached_property
    def new_tokens(self):
        """k as it was before it rotated, and v unless keys hold it, of the new tokens [sequence, token, head,
        dim]."""
        first = self.keys - self.tokens
        begins = [first + i * self.pages_each * self.page_size for i in range(self.batch)]
        keys, values = zip(*(self.held(x, x + self.tokens) for x in begins), strict=True)
        keys = [self.angles(x, first, -1) for x in keys]
        k, v = (torch.stack(x).to(self.dtype) for x in (keys, values))
        return k, None if self.v_in_k else v

    @property
    def scales(self):
        """By the names that peers have for them."""
        parts = "k" if self.v_in_k else "kv"
        return {f"{part}_scale": self.scale for part in parts} if self.is_narrow else {}

    @cached_property
    def rotated_queries(self):
        """[token, head, dim], for peers that attend alone."""
        q = self.drawn[0].unflatten(0, (self.batch, -1))
        return torch.cat([self.angles(x.double(), self.keys - self.tokens) for x in q]).to(self.dtype)
