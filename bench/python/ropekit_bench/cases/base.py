"""A case: tensors that every implementation shares, and what is true of them."""

import random
from functools import cached_property

import torch

ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8}
TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Tokens of a batch row that are compared, bytes of a page.
SAMPLE, PAGE = 16, 4096
SETS_MOST = 1 << 15


class Declined(Exception):
    """A case that an implementation does not offer, with the reason."""


def refusal(s):
    """Why nobody is compared on a shape; empty where they are."""
    if s["angle_mode"] != "exact" or s["rope_type"] != "default" or s["axes"] > 1 or s["xpos"]:
        return "peers are compared on the default rule alone"
    if s["dtype"] not in TORCH_DTYPES or s["pairing_in"] != s["pairing_out"] or s["direction"] != "forward":
        return "peers rotate forward, keep pairing and know f32, f16 and bf16"
    rotary = s["rotary_dim"] or s["head_dim"]
    if not s["in_place"] and {rotary} != {s["head_dim"], s["k_head_dim"] or s["head_dim"]}:
        return "peers return the window alone, ropekit whole heads"
    return ""


def tensor_bytes(s):
    """Of q and k of a shape, and of append's and attention's v."""
    if "attention" in s:
        keys = s["attention"]["keys"] if "kv_cache" in s["attention"] else s["tokens"]
        rows = s["tokens"] * s["q_heads"] + 2 * keys * s["k_heads"]
        return s["batch"] * rows * s["head_dim"] * ITEM_BYTES[s["dtype"]]
    heads = s["q_heads"] * s["head_dim"] + s["k_heads"] * (s["k_head_dim"] or s["head_dim"])
    heads += s.get("append", {}).get("v_heads", 0) * s["head_dim"]
    return s["batch"] * s["tokens"] * heads * ITEM_BYTES[s["dtype"]]


def nbytes(tensors):
    return sum(tensor.nbytes for tensor in tensors)


def round_up(value, unit):
    return -(-value // unit) * unit


def rotate(x, angles, interleaved, to_interleaved):
    """x in fp64 rotated by an angle a pair; how its pairs lie, and how those of the result do."""
    cos, sin, half = angles.cos(), angles.sin(), x.shape[-1] // 2
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    pair = (a * cos - b * sin, b * cos + a * sin)
    return torch.stack(pair, -1).flatten(-2) if to_interleaved else torch.cat(pair, -1)


class Case:
    """shape is a record's. Inputs of a set of tensors lie in `source`, results in `target`, set behind set;
    a view is where a tensor starts in a set, its shape and its type."""

    operation = ""
    flops = 0  # that count beside bytes
    blank = 255  # bytes of results before a check: a NaN in every type
    refusal = staticmethod(refusal)

    def __init__(self, shape, device, cache_bytes, seed, cold):
        self.shape, self.device, self.seed = shape, device, seed
        if reason := self.refusal(shape):
            raise Declined(reason)
        self.dtype = TORCH_DTYPES[shape["dtype"]]
        self.rotary_dim = shape["rotary_dim"] or shape["head_dim"]
        self.interleaved = shape["pairing_in"] == "interleaved"
        self._prepare()
        self.source_views, source = self._lay_out(self._sources())
        self.target_views, target = self._lay_out(self._targets())
        self.pitch = round_up(max(source, target, self.floor_bytes), PAGE)
        self.sets = min(2 * cache_bytes // self.set_bytes + 1, SETS_MOST) if cold else 1
        self._draw(torch.Generator().manual_seed(seed))
        self.source = torch.zeros(self.pitch * self.sets, dtype=torch.uint8, device=device)
        self.target = self.source if self.in_place else self.source.clone()
        for slot in range(self.sets):
            self._restore(slot)

    def _prepare(self):
        """Sizes that inputs and results follow from."""

    def _sources(self):
        """Shape and type of each input of a set."""
        raise NotImplementedError

    def _targets(self):
        """Shape and type of each result of a set."""
        raise NotImplementedError

    @property
    def floor_bytes(self):
        """Bytes that a copy, or in place an update, of as many elements writes."""
        raise NotImplementedError

    @property
    def in_place(self):
        """Whether results replace inputs, so that an update, not a copy, moves as many bytes."""
        return False

    @property
    def set_bytes(self):
        """Of a set that is to leave the cache before it comes again."""
        return self.pitch

    @staticmethod
    def _lay_out(tensors):
        """Views of tensors, one behind the other; and where they end."""
        start, views = 0, []
        for shape, dtype in tensors:
            views.append((start, torch.Size(shape), dtype))
            start = round_up(start + torch.Size(shape).numel() * dtype.itemsize, 64)
        return views, start

    def _at(self, slab, slot, view):
        start, shape, dtype = view
        start += slot * self.pitch
        return slab[start : start + shape.numel() * dtype.itemsize].view(dtype).view(shape)

    def _views(self, slab, slot, views):
        """Tensors of a set; None where there is none."""
        return [self._at(slab, slot, view) if view[1].numel() else None for view in views]

    def _draw(self, generator):
        self.drawn = [
            (2 * torch.rand(shape, generator=generator) - 1).to(self.device, dtype)
            for _, shape, dtype in self.source_views
        ]

    def _restore(self, slot):
        for x, drawn in zip(self._views(self.source, slot, self.source_views), self.drawn, strict=True):
            if x is not None:
                x.copy_(drawn)

    def refresh(self):
        """Gives set 0 its data again, and takes what an earlier implementation left in its results."""
        self.target[: self.pitch] = self.blank
        self._restore(0)

    def tensors(self, slot):
        """q, k and v of a set; None where there is none."""
        return self._views(self.source, slot, self.source_views)

    @cached_property
    def positions(self):
        """int64 [batch, token]."""
        batch, tokens = self.shape["batch"], self.shape["tokens"]
        if self.shape["position_ids"] != "random":
            return torch.arange(tokens, device=self.device).expand(batch, tokens).contiguous()
        generator = torch.Generator().manual_seed(self.seed)
        ids = torch.randint(self.shape["max_position"] + 1, (batch, tokens), generator=generator)
        return ids.to(self.device)

    @cached_property
    def inv_freq(self):
        """fp32, as frameworks keep it."""
        return self.frequencies().float().to(self.device)

    def frequencies(self):
        exponents = torch.arange(0, self.rotary_dim, 2, dtype=torch.float64) / self.rotary_dim
        return self.shape["rope_theta"] ** -exponents

    def table(self, positions):
        """cos and sin of the fp32 product of position and frequency, [..., rotary_dim / 2]."""
        angles = positions[..., None].float() * self.inv_freq
        return angles.cos(), angles.sin()

    @cached_property
    def rows(self):
        """Rows of a table that every position of the call finds."""
        return int(self.positions.max()) + 1

    def selected_bytes(self, tables):
        """Bytes of the rows that the call's positions find in tables with a row for each position."""
        return nbytes(table[: self.positions.unique().numel()] for table in tables)

    def spread(self, half):
        """One entry an element, from one a pair."""
        return half.repeat_interleave(2, -1) if self.interleaved else torch.cat((half, half), -1)

    def sample(self):
        """Tokens of a row that are compared."""
        tokens = self.shape["tokens"]
        if tokens <= SAMPLE:
            return list(range(tokens))
        drawn = random.Random(self.seed).sample(range(1, tokens - 1), SAMPLE - 2)
        return [0, *drawn, tokens - 1]

    def bound(self):
        """What a right answer may be off by: four roundings of dtype, and an angle made in fp32."""
        return 4 * torch.finfo(self.dtype).eps + 8 * self.rows * torch.finfo(torch.float32).eps
