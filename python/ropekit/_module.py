"""RoPEAttention: attention with its rotation as a module."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from typing_extensions import Unpack

from ropekit import _sdpa
from ropekit._append import append
from ropekit._attention import attention, rotated
from ropekit._cache import PARTS, KeyValueCache, numbers, parts_of
from ropekit._decode import decode
from ropekit._errors import count
from ropekit._explain import explain
from ropekit._fields import ModuleFields, listed, merge, refuse_fields
from ropekit._operators import fields_of, follows_length, is_tracing
from ropekit._sharding import in_use
from ropekit.config import Config


class _Norm(nn.Module):
    """The weight of a norm of heads, as Transformers' q_norm and k_norm keep it."""

    def __init__(self, head_dim: int, fields: dict[str, str], **place: Any) -> None:
        super().__init__()
        self.plus_one = fields.get("norm_weight") == "one_plus_weight"
        self.twice = fields.get("norm_rounding") == "twice"
        self.eps = float(fields.get("norm_eps", 0.0))
        start = torch.zeros if self.plus_one else torch.ones
        self.weight = nn.Parameter(start(head_dim, **place))

    def extra_repr(self) -> str:
        kind = ", 1 + weight" if self.plus_one else ""
        return f"{self.weight.numel()}, eps={self.eps}{kind}"

    def forward(self, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float64 else x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        if self.twice:
            return (self.weight * wide.to(x.dtype)).to(x.dtype)
        weight = self.weight.to(wide.dtype)
        return (wide * (1 + weight if self.plus_one else weight)).to(x.dtype)


# Values of fields of which attention has more; the first one is the default.
_ALLOWED = {"layout": ("bshd",), "angle_mode": ("exact", "f32")}


class RoPEAttention(nn.Module):
    """A layer of attention with projections, whose q and k are rotated inside.

    Projections and norms have the names of Transformers' Llama and Qwen3, whose state_dict of
    `self_attn` loads.

    Example:
        >>> layer = ropekit.RoPEAttention(512, heads=8, kv_heads=2, rope_theta=500000.0)
        >>> x = torch.randn(2, 16, 512)  # batch, tokens, hidden_size
        >>> layer(x).shape
        torch.Size([2, 16, 512])
        >>> with torch.no_grad():
        ...     cache = layer.make_cache(batch=2, capacity=64)
        ...     prompt = layer(x, cache=cache)
        ...     token = layer(x[:, -1:], cache=cache)
        >>> cache.tokens
        17

    Sizes:
        hidden_size: elements of a token.
        heads, kv_heads: of q, and of k and v; kv_heads divides heads. None: as many.
        head_dim: elements of a head. None: what `config` states, or hidden_size / heads.
        bias, out_bias: whether q_proj, k_proj and v_proj have one, and o_proj.
        device, dtype: of the parameters; float32, float16, bfloat16 or float64.

    Norm:
        qk_norm: an RMS norm of each head of q and k, as in Qwen3. None: what `config` states.
        norm_eps: of that norm.

    Masks:
        causal: whether a token sees none after its own.
        window, window_right, chunk, softcap, scale: as of `attention`.

    Cache:
        ring: R keeps the last R tokens of each sequence, for calls with a cache, which then never
            fills. A token sees no more than R, and a call has so few tokens that each still finds
            the keys that it sees. A call without a cache is refused.

    Rotation:
        config: the rotation, and the norm of q and k where it states one, as `attention` takes it.
        fields: any field of `attention`, as rope_theta, with what is none there; it goes before
            that of `config`. layout is "bshd", and angle_mode not "table".

    Choice of kernel:
        kernel: as of `attention`; `append` and the projections keep theirs.

    longrope takes its factors by the longest position of each sequence, unless longrope_select
    names them. A cache then holds keys unrotated and each call rotates all of them, so that a
    decode past original_max_position_embeddings equals one whole call.

    Raises:
        TypeError, ValueError: an argument that does not fit, by name.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        config: object = None,
        causal: bool = True,
        qk_norm: bool | None = None,
        norm_eps: float = 1e-6,
        bias: bool = False,
        out_bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **fields: Unpack[ModuleFields],
    ) -> None:
        super().__init__()
        hidden_size, heads = count("hidden_size", hidden_size), count("heads", heads)
        kv_heads = heads if kv_heads is None else count("kv_heads", kv_heads)
        for name, x in (("causal", causal), ("bias", bias), ("out_bias", out_bias)):
            if not isinstance(x, bool):
                raise TypeError(f"{name} is {x!r}; allowed is True or False")
        if not (qk_norm is None or isinstance(qk_norm, bool)):
            raise TypeError(f"qk_norm is {qk_norm!r}; allowed is True, False or None")
        if dtype not in (None, *_sdpa.TAKEN):
            taken = listed([str(x) for x in _sdpa.TAKEN])
            raise TypeError(f"dtype is {dtype}; allowed is {taken}")
        self.config, norm = _configs(config, fields, qk_norm, norm_eps)
        # Refuses what attention's own fields cannot be.
        _sdpa.settings_of(merge(self.config.text, {"mask": "causal" if causal else "full"}))
        stated = fields_of(self.config.text)
        for name, allowed in _ALLOWED.items():
            if stated.get(name, allowed[0]) not in allowed:
                raise ValueError(
                    f"{name} is {stated[name]!r}; allowed in RoPEAttention is "
                    f"{listed([repr(x) for x in allowed])}"
                )
        width = int(stated.get("head_dim", 0))
        if head_dim is None:
            if not width and hidden_size % heads:
                raise ValueError(
                    f"hidden_size is {hidden_size}; allowed without head_dim is a multiple of "
                    f"heads, {heads}"
                )
            head_dim = width or hidden_size // heads
        head_dim = count("head_dim", head_dim)
        if width not in (0, head_dim):
            raise ValueError(f"head_dim is {head_dim}; allowed is what config states, {width}")
        if heads % kv_heads:
            raise ValueError(f"kv_heads is {kv_heads}; allowed is a divisor of heads, {heads}")
        self.hidden_size, self.heads, self.kv_heads = hidden_size, heads, kv_heads
        self.head_dim, self.causal = head_dim, causal
        spans = {name: int(stated[name]) for name in ("ring", "window", "chunk") if name in stated}
        self._ring = count("ring", spans["ring"]) if "ring" in spans else 0
        self._span = min(spans.values(), default=0)  # most keys up to its own that a token sees
        if head_dim % 2 and stated.keys().isdisjoint(("rotary_dim", "rotate", "rotation")):
            raise ValueError(f"head_dim is {head_dim}; allowed without rotary_dim is an even one")
        self._norm = norm
        self._names_kernel = stated.get("kernel") not in (None, _sdpa.LIBRARY)
        place: dict[str, Any] = {"device": device, "dtype": dtype}
        self.q_proj = nn.Linear(hidden_size, heads * head_dim, bias=bias, **place)
        self.k_proj = nn.Linear(hidden_size, kv_heads * head_dim, bias=bias, **place)
        self.v_proj = nn.Linear(hidden_size, kv_heads * head_dim, bias=bias, **place)
        self.o_proj = nn.Linear(heads * head_dim, hidden_size, bias=out_bias, **place)
        self.q_norm: _Norm | None = None
        self.k_norm: _Norm | None = None
        if norm:
            self.q_norm, self.k_norm = (_Norm(head_dim, norm, **place) for _ in range(2))
        self._plan_rotation(stated, norm)

    def _plan_rotation(self, stated: dict[str, str], norm: dict[str, str]) -> None:
        """What `append` rotates: q and k, or neither. Queries alone are rotated behind it, and so
        is what turns otherwise once its sequence is longer."""
        self._follows = follows_length(self.config.text)
        self._axes = int(stated.get("axes", 1))
        select = stated.get("longrope_select", "per_sequence")
        self._by_length = stated.get("rope_type") == "longrope" and select == "per_sequence"
        turns_q, turns_k = rotated(self.config.text)
        self._turns_k = turns_k
        self._ahead = turns_k and not self._by_length
        behind = "qk" if turns_k else "q" if turns_q else "none"
        self._behind: Any = "none" if self._ahead else behind
        own = {"kernel": None, "rotate": None} | ({} if self._ahead else {"rotation": "off"})
        text = merge(self.config.text, own)
        text = " ".join((text, *(f"{name}={x}" for name, x in norm.items()))).strip()
        self._append = Config.from_text(text)
        norms = (f"{name}={x}" for name, x in norm.items())
        self._normed = Config.from_text(" ".join((self.config.text, *norms)).strip())
        self._whole = Config.from_text(merge(text, {"kernel": stated.get("kernel")}))

    def make_cache(
        self,
        batch: int,
        capacity: int,
        page_size: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> KeyValueCache:
        """A cache of this layer, for `forward`; with a ring, a capacity of that is enough. dtype is
        the layer's unless given, as torch.float8_e4m3fn."""
        weight = self.k_proj.weight
        return KeyValueCache(
            batch,
            capacity,
            self.kv_heads,
            self.head_dim,
            page_size=page_size,
            dtype=weight.dtype if dtype is None else dtype,
            device=weight.device,
        )

    def forward(
        self,
        x: Tensor,
        # By place too, as torch.onnx.export gives them with dynamo=False before it is refused.
        positions: Tensor | None = None,
        lengths: Sequence[int] | Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Of [batch, tokens, hidden_size]; with a cache the tokens follow those that it has.

        lengths are how many tokens of each row count; what is behind them is padding, whose result
        means nothing. With a cache a tensor on a device is waited for.
        """
        if not isinstance(x, Tensor):
            raise TypeError(f"x is {type(x).__name__}; allowed is a tensor")
        is_read = is_compiling() or not is_tracing()  # of a trace sizes are tensors
        if x.dim() != 3 or (is_read and x.shape[-1] != self.hidden_size):
            raise ValueError(
                f"x has the shape {list(x.shape)}; allowed is [batch, tokens, {self.hidden_size}]"
            )
        parts = ((self.q_proj, self.heads), (self.k_proj, self.kv_heads))
        q, k = (proj(x).unflatten(-1, (count, self.head_dim)) for proj, count in parts)
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.head_dim))
        heads = self.attend(q, k, v, positions=positions, lengths=lengths, cache=cache)
        found: Tensor = self.o_proj(heads.flatten(2))
        return found

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        positions: Tensor | None = None,
        lengths: Sequence[int] | Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        """Norm, rotation and attention of [batch, tokens, heads, head_dim], without projections; 0
        of padding."""
        if cache is not None:
            if in_use() is not None:
                _refuse_sharded({"cache": cache})
            return self._attend_cached(q, k, v, positions=positions, lengths=lengths, cache=cache)
        options: dict[str, Any] = {"config": self.config, "causal": self.causal}
        sharded = in_use()
        weights = self._weights()
        if (
            weights
            and sharded is None
            and all(x.dtype in (torch.float32, q.dtype) for x in weights.values())
        ):
            options |= {"config": self._normed, **weights}
        elif self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if sharded is not None:
            _refuse_sharded({"positions": positions, "lengths": lengths})
            of_shard: Tensor = sharded.attend(q, k, v, **options)
            return of_shard
        if lengths is not None:
            own: Any = lengths
            if not isinstance(lengths, Tensor) or lengths.device.type == "cpu":
                counts = _counts(lengths, q)
                own = torch.tensor(counts, device=q.device)
                if self._follows and positions is None:
                    options["sequence_length"] = max(counts)
            options |= {"q_lengths": own, "k_lengths": own}
            positions = _without_padding(positions, own, q.shape[1], self._axes)
            options["k_positions"] = positions if self._turns_k else None
        if self._by_length and positions is not None:
            options["sequence_lengths"] = _longest(positions, self._axes, q.shape[0])
        found: Tensor = attention(q, k, v, positions=positions, **options)
        return found

    def _attend_cached(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        positions: Tensor | None,
        lengths: Sequence[int] | Tensor | None,
        cache: KeyValueCache,
    ) -> Tensor:
        caches = dict(zip(PARTS, parts_of(cache), strict=True))
        batch, tokens = q.shape[:2]
        if batch != cache.batch:
            raise ValueError(f"x has the batch {batch}; allowed is the cache's, {cache.batch}")
        new = tokens if lengths is None else _counts(lengths, q)
        longest = self._check_room(new, cache)
        if self._names_kernel and not is_compiling():  # which may be refused
            explain(q, config=self.config, causal=self.causal, rotate=self._behind, cache=cache)
        added: Any = new
        options: dict[str, Any] = {}
        if lengths is not None:
            added = torch.tensor(new, device=q.device)
            positions = _without_padding(positions, added, tokens, self._axes)
        if self._follows and positions is None and (lengths is not None or q.device.type != "cpu"):
            options["sequence_length"] = longest  # padding does not count, nor is a device read
        caches["k_lengths"] = ends = cache.lengths + added
        found: Tensor
        if lengths is None and self._behind == "none":
            found = self._decode(q, k, v, positions=positions, cache=cache, **caches, **options)
            cache.grow(new, ends)
            return found
        q = self._append_to(q, k, v, positions=positions, added=added, cache=cache, **options)
        if not self._ahead:
            options |= self._places(positions, tokens, ends, cache)
        found = attention(
            q,
            config=self.config,
            causal=self.causal,
            rotate=self._behind,
            q_lengths=None if lengths is None else added,
            **caches,
            **options,
        )
        cache.grow(new, ends)  # last, so that a cache is what it was where a call ends early
        return found

    def _decode(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        positions: Tensor | None,
        cache: KeyValueCache,
        **options: Any,
    ) -> Tensor:
        """Norm, rotation, the cache's write and attention of every token, in one call."""
        options |= {f"{part}_scale_out": options.pop(f"{part}_scale") for part in "kv"}
        cache.rotated = True
        return decode(
            q,
            k,
            v,
            config=self._whole,
            causal=self.causal,
            positions=positions,
            cache_starts=None if positions is None else cache.lengths,
            **self._weights(),
            **options,
        )

    def _weights(self) -> dict[str, Any]:
        return {
            f"{part}_weight": norm.weight
            for part, norm in (("q", self.q_norm), ("k", self.k_norm))
            if norm is not None
        }

    def _append_to(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        positions: Tensor | None,
        added: int | Tensor,
        cache: KeyValueCache,
        **options: Any,
    ) -> Tensor:
        """Norm, rotation and the cache's write: of every token, or of the first of each row."""
        ids = positions if self._ahead else None
        given = self._weights()
        if isinstance(added, Tensor):
            offsets = cache.lengths if self._ahead and ids is None else None
            given |= {"slots": cache.slots(added, q.shape[1], self._ring), "ring": None}
        else:
            offsets = cache.lengths if ids is None else None
            given["block_table"] = cache.block_table
            given["cache_starts"] = None if ids is None else cache.lengths
        cache.rotated = self._behind != "qk"
        return append(
            q,
            k,
            v,
            config=self._append,
            positions=ids,
            sequence_offsets=offsets,
            k_cache=cache.k,
            v_cache=cache.v,
            k_scale_out=cache.k_scale,
            v_scale_out=cache.v_scale,
            **given,
            **options,
        )

    def _places(
        self, positions: Tensor | None, tokens: int, lengths: Tensor, cache: KeyValueCache
    ) -> dict[str, Any]:
        """Positions of what is rotated behind the cache's write, where they are no indices."""
        if self._behind != "qk":
            found: dict[str, Any] = {"positions": positions}
            if self._by_length and positions is not None:
                found["sequence_lengths"] = _longest(positions, self._axes, cache.batch)
            return found
        if positions is None and cache.positions is None:
            return {}
        if self._ring:
            raise ValueError(
                "positions is given; allowed with a ring and longrope is None, unless "
                "longrope_select is 'static', 'short' or 'long'"
            )
        if positions is not None:
            lead = (self._axes,) if self._axes > 1 else ()
            allowed = [(*lead, *rows, tokens) for rows in ((), (1,), (cache.batch,))]
            if tuple(positions.shape) not in allowed:
                raise ValueError(
                    f"positions has the shape {list(positions.shape)}; allowed is "
                    f"{list(allowed[0])} or {list(allowed[2])}"
                )
        ids, keys = cache.place(positions, tokens, self._axes)
        used = torch.arange(keys.shape[-1], device=keys.device) < lengths[:, None]
        longest = _longest(keys.where(used, 0), self._axes, cache.batch)
        return {"positions": ids, "k_positions": keys, "sequence_lengths": longest}

    def _check_room(self, new: int | list[int], cache: KeyValueCache) -> int:
        """Refuses what a cache cannot hold: with a ring, a key that one of the tokens sees. Returns
        how many the longest sequence then has."""
        ring = self._ring
        if ring > cache.capacity:
            raise ValueError(
                f"ring is {ring}; allowed is at most the cache's capacity, {cache.capacity}"
            )
        cache.ring = (ring, self._span) if ring else None
        if isinstance(new, int) and cache.is_even():
            self._check_tokens(new, cache.tokens, cache.capacity, "")
            return cache.tokens + new
        counts = cache.counts()
        each = [new] * cache.batch if isinstance(new, int) else new
        for i, (tokens, own) in enumerate(zip(each, counts, strict=True)):
            self._check_tokens(tokens, own, cache.capacity, f" of sequence {i}")
        return max(tokens + own for tokens, own in zip(each, counts, strict=True))

    def _check_tokens(self, tokens: int, own: int, capacity: int, which: str) -> None:
        ring = self._ring
        most = (ring or capacity) - own
        size, why = f" of {capacity}", ""
        if ring:
            size = f", of which a ring keeps {ring}"
            if most <= (each := ring - self._span + 1):
                most, why = each, f" (ring {ring} - {self._span} that a token sees + 1)"
        if tokens > most:
            raise ValueError(
                f"x has {tokens} tokens{which} and the cache {own}{size}; allowed is at most "
                f"{most}{why}"
            )

    def extra_repr(self) -> str:
        text = f"{self.hidden_size}, heads={self.heads}, kv_heads={self.kv_heads}"
        text += f", head_dim={self.head_dim}, causal={self.causal}"
        return f"{text}, config={self.config}" if self.config.text else text


def _refuse_sharded(given: dict[str, object]) -> None:
    for name, x in given.items():
        if x is not None:
            raise ValueError(
                f"{name} is given; allowed within ropekit.distributed.use is None: positions and "
                "lengths are the layout's, and there is no cache"
            )


def _counts(lengths: Sequence[int] | Tensor, q: Tensor) -> list[int]:
    """How many tokens of each row count."""
    batch, tokens = q.shape[:2]
    found = numbers("lengths", lengths, batch)
    for i, n in enumerate(found):
        if not 0 <= n <= tokens:
            raise ValueError(f"lengths[{i}] is {n}; allowed is 0..{tokens}, the tokens of x")
    return found


def _without_padding(
    positions: Tensor | None, lengths: Tensor, tokens: int, axes: int
) -> Tensor | None:
    """Positions of which padding has 0, so that none is the longest."""
    if positions is None or positions.dim() == 0 or positions.shape[-1] != tokens:
        return positions  # attention says what is wrong
    if axes > 1 and positions.dim() == 2:
        positions = positions.unsqueeze(1)
    return positions.where(torch.arange(tokens, device=lengths.device) < lengths[:, None], 0)


def _longest(positions: Tensor, axes: int, batch: int) -> Tensor | None:
    """The longest position of each sequence + 1, by which longrope chooses its factors; None of
    what attention refuses."""
    dims = positions.dim() - (axes > 1)
    if dims not in (1, 2) or positions.numel() == 0:
        return None if positions.numel() else positions.new_zeros(batch)
    last = positions.amax((0, -1) if axes > 1 else -1)
    return last.expand(batch) + 1 if last.numel() == 1 else last + 1


def _configs(
    config: object, fields: Any, qk_norm: bool | None, norm_eps: float
) -> tuple[Config, dict[str, str]]:
    """The configuration of attention, and the fields of the norm."""
    keywords = signature(RoPEAttention).parameters.keys() | ModuleFields.__annotations__.keys()
    refuse_fields(fields, frozenset(keywords), "AttentionFields")
    if config is None:
        config = Config()
    own = config if isinstance(config, Config) else Config.from_transformers(config)
    stated = fields_of(own.text)
    norm = {name: x for name, x in stated.items() if name.startswith("norm_")}
    kept = merge(own.text, dict.fromkeys(norm) | fields)
    other = next((name for name in stated if name.endswith("factor") and name[1:2] == "_"), None)
    other = other or next((name for name in stated if name[1:7] == "_norm_"), None)
    if other or norm.get("norm_scope", "head") != "head" or norm.get("norm_type", "rms") != "rms":
        raise ValueError(
            f"config states {other or 'a norm of tokens or layers'}; allowed is an RMS norm of "
            "heads, of q and k alike"
        )
    merge("", {"norm_eps": norm_eps})  # refuses what is no number
    if not 0 <= norm_eps < float("inf"):
        raise ValueError(f"norm_eps is {norm_eps!r}; allowed is >= 0 and finite")
    if qk_norm is False:
        norm = {}
    elif qk_norm and not norm:
        norm = {"norm_type": "rms", "norm_rounding": "twice", "norm_eps": repr(float(norm_eps))}
    return Config.from_text(kept), norm
