"""One case: tensors that every implementation shares, and what is true of their rotation."""

import random
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch

ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8}
TORCH_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Elements drawn before the data repeat, tokens of a batch row that are compared, bytes of a page.
PERIOD, SAMPLE, PAGE = 1 << 18, 16, 4096
SETS_MOST = 1 << 15


class Declined(Exception):
    """A case that an implementation does not offer, with the reason."""


def refusal(s):
    """Why nobody is compared on a shape; empty where they are."""
    if s["angle_mode"] != "exact" or s["rope_type"] != "default" or s["axes"] > 1 or s["xpos"]:
        return "peers are compared on the default rule alone"
    if s["dtype"] not in TORCH_DTYPES or s["pairing_in"] != s["pairing_out"]:
        return "peers keep pairing and know f32, f16 and bf16"
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


@dataclass
class Case:
    """shape is a record's; sets of q and k lie one after the other in `source`, results in `target`."""

    shape: dict
    device: torch.device
    cache_bytes: int
    seed: int
    cold: bool
    operation: ClassVar[str] = "rotation"
    flops: ClassVar[float] = 0  # that count beside bytes
    source: torch.Tensor = field(init=False)
    target: torch.Tensor = field(init=False)

    def __post_init__(self):
        s = self.shape
        if refusal(s):
            raise Declined(refusal(s))
        self.dtype = TORCH_DTYPES[s["dtype"]]
        self.rotary_dim = s["rotary_dim"] or s["head_dim"]
        self.interleaved = s["pairing_in"] == "interleaved"
        self.backward = s["direction"] == "transpose"
        self.q_shape = (s["batch"], s["tokens"], s["q_heads"], s["head_dim"])
        self.k_shape = (s["batch"], s["tokens"], s["k_heads"], s["k_head_dim"] or s["head_dim"])
        size = self.dtype.itemsize
        self.k_start = round_up(size * torch.Size(self.q_shape).numel(), 64)
        self.tensor_bytes = tensor_bytes(s)
        self.pitch = round_up(self.k_start + size * torch.Size(self.k_shape).numel(), PAGE)
        wanted = 2 * self.cache_bytes // self.pitch + 1  # of source alone: some rotate in place
        self.sets = min(wanted, SETS_MOST) if self.cold else 1
        self._fill()

    @property
    def in_place(self):
        """Whether an update, not a copy, moves as many bytes."""
        return self.shape["in_place"]

    @property
    def floor_bytes(self):
        """Bytes that a copy, or in place an update, of the same elements writes."""
        if not self.in_place:
            return self.tensor_bytes
        heads = self.shape["q_heads"] + self.shape["k_heads"]
        return self.dtype.itemsize * self.rotary_dim * heads * self.shape["batch"] * self.shape["tokens"]

    def _fill(self):
        generator = torch.Generator().manual_seed(self.seed)
        period = (2 * torch.rand(PERIOD, generator=generator) - 1).to(self.dtype)
        elements = self.pitch // self.dtype.itemsize
        self.data = period.repeat(-(-elements // PERIOD))[:elements].to(self.device)
        self.source = self.data.repeat(self.sets)
        self.target = self.source if self.shape["in_place"] else self.source.clone()

    def refresh(self):
        """Gives set 0 its data again, and takes what an earlier implementation left in its result."""
        if not self.shape["in_place"]:
            self.target[: len(self.data)] = float("nan")
        self.source[: len(self.data)] = self.data

    def _view(self, slab, index, which):
        shape = self.k_shape if which else self.q_shape
        start = (index * self.pitch + (self.k_start if which else 0)) // self.dtype.itemsize
        return slab[start : start + torch.Size(shape).numel()].view(shape)

    def whole(self, slab, index):
        """q and k of a set, [batch, token, head, dim]; k is None without key heads."""
        return self._view(slab, index, 0), self._view(slab, index, 1) if self.k_shape[2] else None

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
        """Windows of q and k, one pair a set."""
        return [self.window(self.whole(self.source, i)) for i in range(self.sets)]

    @property
    def is_whole(self):
        return self.rotary_dim == self.q_shape[3] and self.rotary_dim == self.k_shape[3]

    @cached_property
    def positions(self):
        """int64 [batch, token]."""
        batch, tokens = self.q_shape[:2]
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
        tokens = self.q_shape[1]
        if tokens <= SAMPLE:
            return list(range(tokens))
        drawn = random.Random(self.seed).sample(range(1, tokens - 1), SAMPLE - 2)
        return [0, *drawn, tokens - 1]

    def truth(self, x, tokens):
        """The rotation of x[:, tokens] in fp64."""
        x = x[:, tokens].double().cpu()
        angles = self.positions[:, tokens].cpu().double()[..., None, None] * self.frequencies()
        return rotate(x, -angles if self.backward else angles, self.interleaved, self.interleaved)

    def bound(self):
        """What a right answer may be off by: four roundings of dtype, and an angle made in fp32."""
        return 4 * torch.finfo(self.dtype).eps + 8 * self.rows * torch.finfo(torch.float32).eps

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
