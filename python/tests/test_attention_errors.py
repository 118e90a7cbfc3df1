"""attention names what is wrong: the argument, its value and what is allowed."""

from __future__ import annotations

from typing import Any

import pytest
import ropekit
import torch
from ropekit._fields import _takers
from ropekit._hints import HINTS

Q, K = torch.zeros(2, 3, 4, 64), torch.zeros(2, 5, 2, 64)
CACHE, TABLE = torch.zeros(6, 4, 2, 64), torch.tensor([[0, 1], [2, 3]])
LENGTHS, IDS = torch.tensor([5, 4]), torch.arange(5)
BYTES = torch.zeros(6, 4, 2, 64, dtype=torch.int8)
BOTH: dict[str, Any] = {"q": Q, "k": K, "v": K}
PAGED: dict[str, Any] = {
    **{"q": Q, "k_cache": CACHE, "v_cache": CACHE, "block_table": TABLE, "k_lengths": LENGTHS},
}
PACKED: dict[str, Any] = {
    **{"q": Q[0], "k": K[0], "v": K[0], "cu_seqlens": torch.tensor([0, 1, 3])},
    **{"k_cu_seqlens": torch.tensor([0, 2, 5])},
}
TREE = torch.ones(3, 5, dtype=torch.bool)
WORDS = torch.zeros(3, 1, dtype=torch.int32)
ERRORS: list[tuple[type[Exception], str, dict[str, Any]]] = [
    # keys and values
    (ValueError, "k and k_cache are None; allowed is one of them", {"q": Q}),
    (ValueError, "v and v_cache are None; allowed is one of them", {"q": Q, "k": K}),
    (ValueError, "k is given; allowed is None with k_cache", {**PAGED, "k": K}),
    (ValueError, "v_cache is not given; allowed is a tensor with k_cache", {
        **PAGED, "v_cache": None}),
    (ValueError, "block_table is given; allowed is None without k_cache", {
        **BOTH, "block_table": TABLE}),
    (ValueError, "k_scale is given; allowed is None without k_cache", {
        **BOTH, "k_scale": torch.ones(1)}),
    (ValueError, "max_seqlen_k is 8; allowed is None without k_cache", {
        **BOTH, "max_seqlen_k": 8}),
    (ValueError, "max_seqlen_k is 0; allowed is > 0, or None", {**PAGED, "max_seqlen_k": 0}),
    # shapes and types
    (TypeError, "q is NoneType; allowed is a tensor", {"q": None}),
    (TypeError, "positions is list; allowed is a tensor", {**BOTH, "positions": [1]}),
    (TypeError, "k is torch.float32; allowed is torch.float64, the type of q", {
        **BOTH, "q": Q.double()}),
    (TypeError, "q is torch.float64; allowed is torch.float32, torch.float16 or torch.bfloat16", {
        **BOTH, "q": Q.double(), "kernel": "library"}),
    (TypeError, "v is torch.float16; allowed is torch.float32, the type of q", {
        **BOTH, "v": K.half()}),
    (TypeError, "v_weight is given; allowed is that for ropekit.append$", {**BOTH, "v_weight": K}),
    (ValueError, "kernel is 'sdpa'; allowed with a cache and backend .* any of library, ", {
        **PAGED, "kernel": "sdpa"}),
    (ValueError, "q has 2 dimensions; allowed is 4, or 3 for layout 'thd'", {**BOTH, "q": Q[0, 0]}),
    (ValueError, "k has 3 dimensions; allowed is 4, for layout 'bshd'", {**BOTH, "k": K[0]}),
    (ValueError, "k has batch 1; allowed is that of q, 2", {**BOTH, "k": K[:1]}),
    (ValueError, "k has head_dim 32; allowed is that of q, 64", {**BOTH, "k": K[..., :32]}),
    (ValueError, "k has 3 heads; allowed is a divisor of 4, the heads of q", {
        **BOTH, "k": torch.zeros(2, 5, 3, 64)}),
    (ValueError, "v has 1 heads; allowed is that of k, 2", {**BOTH, "v": K[:, :, :1]}),
    (ValueError, "v has batch 2 and 4 tokens; allowed is that of k, 2 and 5", {
        **BOTH, "v": K[:, :4]}),
    (ValueError, "k has 0 tokens; allowed is > 0", {
        **BOTH, "k": K[:, :0], "v": K[:, :0], "k_lengths": LENGTHS}),
    (ValueError, "v has batch 2 and 5 tokens; allowed is that of k, 2 and 0", {
        **BOTH, "k": K[:, :0]}),
    (ValueError, "k has 0 tokens; allowed is > 0", {
        "q": Q.double(), "k": K[:, :0].double(), "v": K[:, :0].double()}),
    (ValueError, "k has 0 tokens; allowed is > 0", {
        "q": Q[:, :1], "k": K[:, :0], "v": K[:, :0], "kernel": "sdpa", "causal": False}),
    (ValueError, r"q has head_dim 640; allowed is 1\.\.576", {
        **BOTH, "q": torch.zeros(2, 3, 4, 640)}),
    *((ValueError, rf"{name} has head_dim 0; allowed is 1\.\.576", {
        **BOTH, **dict.fromkeys(names, Q[..., :0])})
        for name, names in (("q", "q"), ("q", "qkv"), ("k", "k"), ("k", "kv"), ("v", "v"))),
    (ValueError, "k_cache has head_dim 0; allowed is 64", {**PAGED, "k_cache": CACHE[..., :0]}),
    (ValueError, r"v_cache has head_dim 0; allowed is 1\.\.4096", {
        **PAGED, "v_cache": CACHE[..., :0]}),
    (ValueError, "k_cache has 2 dimensions; allowed is 3 to 5", {**PAGED, "k_cache": CACHE[0, 0]}),
    (ValueError, "v_cache has 6 pages of 0 slots; allowed is > 0 of each", {
        **PAGED, "k_cache": CACHE, "v_cache": CACHE[:, :0]}),
    (ValueError, "k has 0 heads; allowed is > 0", {
        **BOTH, **dict.fromkeys("qkv", Q[:, :, :0])}),
    (ValueError, "k has 4 heads; allowed is a divisor of 3, the heads of q in this layout", {
        **BOTH, "q": Q.transpose(1, 2), "k": Q, "v": Q}),
    (ValueError, "q repeats one element; allowed is a tensor with a stride", {
        **BOTH, "q": torch.zeros(1).expand(2, 3, 4, 64)}),
    # sequences
    (ValueError, "k_lengths is not given; allowed with k_cache is a tensor", {
        **PAGED, "k_lengths": None}),
    (ValueError, "k_lengths has 1 entries; allowed is 2, one a sequence", {
        **PAGED, "k_lengths": LENGTHS[:1]}),
    (ValueError, r"k_lengths\[0\] is 9; allowed is 0\.\.8", {**PAGED, "k_lengths": LENGTHS + 4}),
    (ValueError, r"k_lengths\[1\] is -1; allowed is 0\.\.5", {**BOTH, "k_lengths": LENGTHS - 5}),
    (ValueError, r"q_lengths\[0\] is 5; allowed is 0\.\.3 \(tokens\)", {
        **BOTH, "q_lengths": LENGTHS}),
    (ValueError, r"q_lengths\[0\] is 5; allowed is 0\.\.\d, by cu_seqlens\[0\] and cu_seq", {
        **PACKED, "q_lengths": LENGTHS}),
    (ValueError, r"k_lengths\[0\] is 5; allowed is 0\.\.\d, by k_cu_seqlens\[0\] and k_cu", {
        **PACKED, "k_lengths": LENGTHS}),
    (ValueError, "k_cu_seqlens is not given; allowed where k has 5 tokens and q has 3 is", {
        **PACKED, "k_cu_seqlens": None}),
    (ValueError, "k_cu_seqlens is given; allowed is None without cu_seqlens", {
        **BOTH, "k_cu_seqlens": LENGTHS}),
    (ValueError, "k_cu_seqlens has 1 dimensions, gaps or another size; allowed is .* of 3, as of", {
        **PACKED, "k_cu_seqlens": torch.tensor([0, 5])}),
    (ValueError, r"cu_seqlens\[1\] is 2 and cu_seqlens\[2\] is 1; allowed is not falling", {
        **PACKED, "cu_seqlens": torch.tensor([0, 2, 1])}),
    (ValueError, r"the page of key 0 of sequence 1 is 6; allowed is 0\.\.5 \(pages - 1\)", {
        **PAGED, "block_table": torch.tensor([[0, 1], [6, 3]])}),
    (ValueError, "block_table has 1 rows; allowed is 2, one a sequence", {
        **PAGED, "block_table": TABLE[:1]}),
    (ValueError, "k_cache has 1 pages; allowed without block_table is 2, one a sequence, or more", {
        **PAGED, "block_table": None, "k_cache": CACHE[:1], "v_cache": CACHE[:1]}),
    # caches
    (ValueError, "k_cache has 4 heads; allowed is a divisor of 2, the heads of q", {
        **PAGED, "q": Q[:, :, :2], "k_cache": torch.zeros(6, 4, 4, 64)}),
    (ValueError, "v_cache has 1 heads; allowed is 2", {**PAGED, "v_cache": CACHE[:, :, :1]}),
    (ValueError, "k_cache has head_dim 32; allowed is 64", {**PAGED, "k_cache": CACHE[..., :32]}),
    (ValueError, "v_cache has 5 pages of 4 slots; allowed is those of k_cache, 6 of 4", {
        **PAGED, "v_cache": CACHE[:5]}),
    (TypeError, r"k_cache is torch.uint8; allowed is .*, as in \.view\(torch.float8_e4m3fn\) of", {
        **PAGED, "k_cache": BYTES.byte()}),
    (ValueError, "cache_layout is 'nhdx'; allowed is 'nhd', 'hnd' or 'vllm'", {
        **PAGED, "cache_layout": "nhdx"}),
    (ValueError, r"k_scale has the shape \[3\]; allowed is one number, one a head or \[6, 4, 2\]", {
        **PAGED, "k_cache": BYTES, "k_scale": torch.ones(3)}),
    (ValueError, "k_scale.* is 0; allowed is > 0 and finite", {
        **PAGED, "k_cache": BYTES, "k_scale": torch.zeros(1)}),
    (ValueError, "k_scale is given; allowed is None unless k_cache has 8 bits", {
        **PAGED, "k_scale": torch.ones(1)}),
    (ValueError, "ring is 4; allowed is None without a cache", {**BOTH, "ring": 4}),
    # masks and scores
    (TypeError, "causal is 1; allowed is True, False or None", {**BOTH, "causal": 1}),
    (ValueError, "causal is given; allowed is None with tree_mask", {
        **BOTH, "causal": False, "tree_mask": TREE}),
    (ValueError, "window_right is 3; allowed is None or 0 unless causal is False", {
        **BOTH, "window_right": 3, "tree_mask": TREE}),
    (ValueError, "window is -3; allowed is > 0; None, 0 and -1 are none$", {**BOTH, "window": -3}),
    (ValueError, "chunk is -3; allowed is > 0; None, 0 and -1 are none$", {**BOTH, "chunk": -3}),
    (ValueError, "window_right is -2; allowed is >= 0; None and -1 are none$", {
        **BOTH, "window_right": -2}),
    (ValueError, "window_right is 0; allowed is None with tree_mask", {
        **BOTH, "window_right": 0, "tree_mask": TREE}),
    (TypeError, "window is False; allowed is a whole number", {**BOTH, "window": False}),
    (TypeError, "softcap is False; allowed is a number", {**BOTH, "softcap": False}),
    (ValueError, r"ring is 30; allowed without block_table is 1\.\.4 \(tokens of a page\), or N", {
        "q": Q, "k_cache": CACHE[:2], "v_cache": CACHE[:2], "k_lengths": LENGTHS, "ring": 30}),
    (TypeError, "chunk is 2.5; allowed is a whole number", {**BOTH, "chunk": 2.5}),
    (ValueError, "window_right is 2; allowed is None or 0 unless causal is False", {
        **BOTH, "window_right": 2}),
    (ValueError, r"scale is -1; allowed is None, or 2\^-60..2\^60", {
        **BOTH, "scale": -1.0}),
    (ValueError, r"softcap is -2; allowed is 2\^-60..2\^60; None, 0 and -1 are none$", {
        **BOTH, "softcap": -2}),
    (ValueError, "sinks has 2 entries; allowed is 4, one a head of q", {
        **BOTH, "sinks": torch.zeros(2)}),
    (TypeError, "sinks is torch.float16; allowed is torch.float32", {
        **BOTH, "sinks": torch.zeros(4).half()}),
    (ValueError, r"tree_mask has the shape \[2, 1\] in words; allowed is \[3, words\] or \[2,", {
        **BOTH, "tree_mask": TREE[:2]}),
    (ValueError, r"tree_mask has the shape \[5\]; allowed is \[batch, tokens, keys\] or \[tokens", {
        **BOTH, "tree_mask": TREE[0]}),
    (ValueError, r"tree_mask has the shape \[2, 4, 3, 5\]; allowed is \[batch, tokens, keys\] or", {
        **BOTH, "tree_mask": TREE.expand(2, 4, 3, 5)}),
    (TypeError, "tree_mask is torch.int64; allowed is torch.bool or torch.int32", {
        **BOTH, "tree_mask": TREE.long()}),
    (ValueError, r"tree_keys is 33; allowed is 1\.\.32, 32 for each word", {
        **BOTH, "tree_mask": WORDS, "tree_keys": 33}),
    (ValueError, "tree_keys is 5; allowed with a tree_mask of bool is None", {
        **BOTH, "tree_mask": TREE, "tree_keys": 5}),
    (ValueError, "tree_keys is 5; allowed is None without tree_mask", {**BOTH, "tree_keys": 5}),
    # the rotation
    (ValueError, "rotate is 'k'; allowed is 'qk', 'q' or 'none'", {**BOTH, "rotate": "k"}),
    (ValueError, "rotate is 'q'; allowed is None or 'none' where rotation is 'off'", {
        **BOTH, "rotate": "q", "rotation": "off"}),
    (ValueError, "positions is given; allowed is None where neither q nor k rotates", {
        **BOTH, "rotate": "none", "positions": IDS[:3]}),
    (ValueError, "positions is given; allowed is None where neither q nor k rotates", {
        **dict.fromkeys("qkv", Q), "rotate": "none", "positions": IDS[:3], "kernel": "sdpa"}),
    (ValueError, "position_offset is given; allowed is None where neither q nor k rotates", {
        **BOTH, "rotate": "none", "position_offset": 2}),
    (ValueError, r"positions has the shape \[5\]; allowed is \[tokens\] or \[batch, tokens\]", {
        **BOTH, "positions": IDS}),
    (ValueError, "k_positions is not given; allowed with positions is a tensor, unless k has", {
        **BOTH, "positions": IDS[:3]}),
    (ValueError, "k_positions is given alone; allowed is positions and k_positions together", {
        **BOTH, "k_positions": IDS}),
    (ValueError, "k_positions is given; allowed is None where keys do not rotate", {
        **BOTH, "rotate": "q", "positions": IDS[:3], "k_positions": IDS}),
    (TypeError, "position_offset is 0.5; allowed is a whole number", {
        **BOTH, "position_offset": 0.5}),
    (ValueError, r"the position of query 2 of sequence 0 is 4; allowed is below table_rows \(4\)", {
        **BOTH, "cos": torch.ones(4, 32), "sin": torch.ones(4, 32)}),
    (ValueError, "shard is given; allowed is None or 'none' in attention", {
        **BOTH, "shard": "zigzag", "shard_size": 2}),
    (ValueError, "k_head_dim is 32 and the tensor has 64; allowed is what the tensor has", {
        **BOTH, "k_head_dim": 32}),
    (TypeError, "v_norm_type is given; allowed is that in a Config and for ropekit.append", {
        **BOTH, "v_norm_type": "rms"}),
]  # fmt: skip


@pytest.mark.parametrize("kind, words, options", ERRORS)
def test_errors(kind: type[Exception], words: str, options: dict[str, Any]) -> None:
    with pytest.raises(kind, match=words):
        ropekit.attention(**options)


# Arguments of others, and what the error says of them.
MEANT = {
    "attn_mask": "causal, window and chunk for masks of that shape, q_lengths and k_lengths for",
    "attention_mask": "causal, window and chunk for masks of that shape, q_lengths and",
    "dropout_p": "ropekit.apply, then torch.nn.functional.scaled_dot_product_attention: ropekit's",
    "is_causal": "causal$",
    "enable_gqa": "k and v of fewer heads, without more$",
    "query": "q$",
    "key": "k$",
    "scaling": "scale$",
    "softmax_scale": "scale$",
    "window_size": r"window=left \+ 1 and window_right=right, of \(left, right\)$",
    "alibi_slopes": "ropekit.apply, then attention that has it",
    "bias": "ropekit.apply, then attention that has it",
    "block_tables": "block_table$",
    "cache_seqlens": "k_lengths$",
    "cache_leftpad": "k_cache and v_cache without padding ahead of a sequence$",
    "cu_seqlens_q": "cu_seqlens$",
    "cu_seqlens_k": "k_cu_seqlens$",
    "max_seqlen_q": "nothing: the kernel finds out by itself$",
    "sm_scale": "scale$",
    "window_left": r"window=left \+ 1$",
    "kv_indptr": "block_table, the pages of each sequence, with k_lengths, its tokens$",
    "slot_mapping": "slots, for ropekit.append$",
    "inplace": "ropekit.apply_$",
    "output_attentions": "return_lse: the weights themselves are not kept$",
}


@pytest.mark.parametrize("name", MEANT)
def test_arguments_of_others(name: str) -> None:
    for call in (ropekit.attention, ropekit.explain):
        with pytest.raises(
            TypeError, match=f"there is no field {name!r}; allowed is {MEANT[name]}"
        ):
            call(**BOTH, **{name: None})


def test_every_hint_of_one_word_is_an_argument() -> None:
    for other, own in HINTS.items():
        assert own.isidentifier() <= bool(_takers(own)), own
        assert other not in ropekit.LayerFields.__annotations__


OUT, LSE = torch.zeros(2, 1, 3, 4, 64), torch.zeros(2, 1, 3, 4)
MERGE_ERRORS: list[tuple[type[Exception], str, Any, Any]] = [
    (TypeError, "out is int; allowed is a tensor or a list of tensors", 3, LSE),
    (TypeError, "lse is list; allowed is a tensor or a list of tensors", OUT, []),
    (TypeError, "lse is torch.float16; allowed is torch.float32", OUT, LSE.half()),
    (TypeError, "out is torch.float64; allowed is torch.float32, torch.float16", OUT.double(), LSE),
    (ValueError, "out has 3 dimensions; allowed is 5, or 4 of packed", OUT[0, 0], LSE[0, 0]),
    (ValueError, r"lse has the shape \[2, 1, 3\]; allowed is that of out", OUT, LSE[..., 0]),
    (ValueError, "out has 0 parts; allowed is > 0", OUT[:0], LSE[:0]),
    (ValueError, r"out has head_dim 640; allowed is 1\.\.576", torch.zeros(2, 1, 3, 4, 640), LSE),
]


@pytest.mark.parametrize("kind, words, out, lse", MERGE_ERRORS)
def test_errors_of_merge(kind: type[Exception], words: str, out: Any, lse: Any) -> None:
    with pytest.raises(kind, match=words):
        ropekit.attention_merge(out, lse)


def test_what_attention_alone_reads_is_refused_elsewhere() -> None:
    words = r"window is given; allowed is that in a Config and for ropekit.attention"
    for call in (ropekit.apply, ropekit.append):
        with pytest.raises(TypeError, match=words):
            call(Q, window=3)  # type: ignore[call-overload]
    config = ropekit.Config(window=3, softcap=2.0, rotate="q", norm_type="rms", rope_theta=5e5)
    assert torch.equal(ropekit.apply(Q, config=config), ropekit.apply(Q, rope_theta=5e5))
    found = ropekit.attention(Q, K, K, config=config.replace(rotate=None))
    assert torch.equal(found, ropekit.attention(Q, K, K, window=3, softcap=2.0, rope_theta=5e5))
