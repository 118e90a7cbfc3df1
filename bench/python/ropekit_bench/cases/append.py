"""A case of append: q, k and v, the pages that they are written to, and what is true of them."""

import torch

from ropekit_bench.cases.base import ITEM_BYTES, TORCH_DTYPES, Case, Declined, refusal, rotate, round_up

STORED = {**TORCH_DTYPES, "f8e4m3": torch.float8_e4m3fn}
SCALE = 2.0**-6  # of what is stored in 8 bits; a power of two, which a division or a product takes exactly
NORM = {"type": "rms", "weight": "weight", "rounding": "twice", "eps": 1e-6}


def norm_of(shape, part):
    """The fields of a norm, less their prefix; empty without one."""
    prefix = f"{part}_norm_"
    return {k.removeprefix(prefix): v for k, v in shape["append"].items() if k.startswith(prefix)}


def append_refusal(s):
    """Why nobody is compared on a shape; empty where they are."""
    a = s["append"]
    norms = [norm_of(s, part) for part in "qkv"]
    simple = refusal({**s, "in_place": True, "pairing_out": s["pairing_in"]})
    if simple:
        return simple
    if a.get("kv_cache") != "slots" or any({**n, "dim": 0} != {**NORM, "dim": 0} for n in norms if n):
        return "peers are compared on slots and on RMS norms of heads alone"
    if {a.get("k_scale"), a.get("v_scale")} - {None, "tensor"} or any("factor" in name for name in a):
        return "peers are compared on one scale and without factors"
    if {a.get(f"{p}_store_dtype", s["dtype"]) for p in "kv"} - STORED.keys() or "q_store_dtype" in a:
        return "peers are compared on caches of f32, f16, bf16 and e4m3"
    return ""


class Append(Case):
    """q, k and v are inputs, q's result and the pages of k and v results. run(slot) gives q."""

    operation = "append"
    blank = 0  # slots that no token writes
    refusal = staticmethod(append_refusal)

    def _prepare(self):
        s, a = self.shape, self.shape["append"]
        self.moves = a.get("k_source") == "cache"
        tokens = s["batch"], s["tokens"]
        self.q_shape = (*tokens, s["q_heads"], s["head_dim"])
        self.k_shape = (*tokens, s["k_heads"], s["k_head_dim"] or s["head_dim"])
        self.v_shape = (*tokens, a.get("v_heads", 0), a.get("v_head_dim", s["head_dim"]))
        self.count, self.page_size = s["batch"] * s["tokens"], a["page_size"]
        pages = self.count if s["position_ids"] == "random" else -(-self.count // self.page_size)
        self.pages = max(pages, 1)
        self.k_type, self.v_type = (STORED[a.get(f"{p}_store_dtype", s["dtype"])] for p in "kv")
        self.scale = torch.full((1,), SCALE, device=self.device)
        self._place()

    def _sources(self):
        heads = [x[2:] for x in (self.q_shape, self.k_shape, self.v_shape)]
        counts = self.count, 0 if self.moves else self.count, self.count
        return [((n, *x), self.dtype) for n, x in zip(counts, heads, strict=True)]

    def _targets(self):
        page = self.pages, self.page_size
        q = (self.count, *self.q_shape[2:]), self.dtype
        return q, ((*page, *self.k_shape[2:]), self.k_type), ((*page, *self.v_shape[2:]), self.v_type)

    @property
    def floor_bytes(self):
        item = ITEM_BYTES[self.shape["dtype"]]
        heads, k, v = (x[2] for x in (self.q_shape, self.k_shape, self.v_shape))
        q_dim = self.rotary_dim if self.shape["in_place"] else self.q_shape[3]
        k_in = self.k_type.itemsize if self.moves else item
        each = heads * q_dim * 2 * item
        each += k * self.k_shape[3] * (k_in + self.k_type.itemsize)
        each += v * self.v_shape[3] * (item + self.v_type.itemsize)
        return round_up(self.count * each // 2, 16)

    def _draw(self, generator):
        super()._draw(generator)
        shapes = self.q_shape, self.k_shape
        norms = [norm_of(self.shape, part) for part in "qk"]
        self.weights = [
            (1 + 0.1 * torch.randn(n.get("dim", x[3]), generator=generator)).to(self.device, self.dtype)
            if n
            else None
            for n, x in zip(norms, shapes, strict=True)
        ]
        if self.moves:
            _, shape, _ = self.target_views[1]
            keys = 2 * torch.rand(shape, generator=generator) - 1
            keys = keys / SCALE if self.k_type.itemsize == 1 else keys
            self.drawn_keys = keys.to(self.k_type).to(self.device)

    def _restore(self, slot):
        super()._restore(slot)
        if self.moves:
            self.caches(slot)[0].copy_(self.drawn_keys)

    def _place(self):
        """Slots as the tool deals them: pages in a random order, a token in its own page for decoding."""
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(self.pages, generator=generator)
        tokens = torch.arange(self.count)
        if self.shape["position_ids"] == "random":
            inner = torch.randint(self.page_size, (self.count,), generator=generator)
            slots = order[: self.count] * self.page_size + inner
        else:
            slots = order[tokens // self.page_size] * self.page_size + tokens % self.page_size
        self.page_order, self.slots = order.to(self.device), slots.to(self.device)

    def q_out(self, slot):
        if self.shape["in_place"]:
            return self.tensors(slot)[0]
        return self._at(self.target, slot, self.target_views[0])

    def caches(self, slot):
        """Pages of k and v, [page, slot, head, dim]; None where there is none."""
        return self._views(self.target, slot, self.target_views[1:])

    def turned(self, x, which, tokens, pairing):
        """The rotation, in fp64, of what a part of a head holds; pairs in the order of pairing."""
        s = self.shape
        offset = s["k_rotary_offset"] if which and s["k_head_dim"] else s["rotary_offset"]
        y = x.double()
        window = slice(offset, offset + self.rotary_dim)
        y[..., window] = self.truth_at(y[..., window], tokens, pairing)
        return y

    def truth_at(self, x, tokens, pairing):
        angles = self.positions.flatten()[tokens].double()[:, None, None] * self.frequencies().to(x.device)
        return rotate(x, angles, self.interleaved, pairing == "interleaved")

    def normed(self, x, which):
        weight, y = self.weights[which], x.double()
        if weight is None:
            return y
        part = y[..., : len(weight)]
        scale = (part.square().mean(-1, keepdim=True) + NORM["eps"]).rsqrt()
        return torch.cat((part * scale * weight.double(), y[..., len(weight) :]), -1)

    def sample(self):
        rows = super().sample() if self.shape["batch"] == 1 else range(self.count)
        return torch.tensor(list(rows), device=self.device)

    def expected(self, rows, pairing):
        """q, k and v of some tokens in fp64."""
        q, k, v = self.drawn
        if self.moves:
            keys = self.drawn_keys.float() * (SCALE if self.k_type.itemsize == 1 else 1)
            k = keys.flatten(0, 1)[self.slots]
        found = [self.turned(self.normed(x[rows], i), i, rows, pairing) for i, x in enumerate((q, k))]
        return [*found, v[rows].double()]

    def stored(self, slot, rows):
        """What the pages hold of k and v of some tokens."""
        return [
            None if x is None else x.flatten(0, 1).view(x.dtype)[self.slots[rows]] for x in self.caches(slot)
        ]

    def check(self, run):
        """Pairs of q and k may lie in either order where the case changes it: attention does not see it."""
        self.refresh()
        rows = self.sample()
        q = run(0)
        found = [None if q is None else q[rows], *self.stored(0, rows)]
        pairings = {self.shape["pairing_in"], self.shape["pairing_out"]}
        best = min((self.compare(self.expected(rows, p), found) for p in pairings), key=lambda c: c["worst"])
        if not best["worst"] <= 1:
            raise Declined(f"wrong: off by {best['worst']:.3g} of what is allowed")
        return best

    def compare(self, truths, found):
        elements, worst, error = 0, 0.0, 0.0
        for truth, output in zip(truths, found, strict=True):
            if output is None or not truth.numel():
                continue
            narrow = output.dtype.itemsize == 1
            off = (output.float().double() * (SCALE if narrow else 1) - truth).abs()
            allowed = 2 * self.bound() * truth.abs().amax().clamp_min(1)
            if narrow:
                allowed = allowed + truth.abs() / 16 + SCALE * 2.0**-9
            elif output.dtype != self.dtype:
                allowed = allowed + truth.abs() * torch.finfo(output.dtype).eps / 2
            ratio = (off / allowed).max().item()
            worst = max(worst, ratio) if ratio == ratio else float("inf")
            error = max(error, off.max().item())
            elements += truth.numel()
        return {"elements": elements, "max_error": error, "worst": worst}
