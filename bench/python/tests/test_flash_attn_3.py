"""FlashAttention 3's adapter, by operators of its schema in plain PyTorch: they are told what a case is."""

import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from conftest import case_of

from ropekit_bench.cases.base import Declined, rotate
from ropekit_bench.peers import flash_attn_3

CASES = [
    *(
        ("attention", x)
        for x in ("32/8 heads", "32/8 heads, rotated before", "all keys", "window 1K", "packed")
    ),
    *(
        ("attention", x)
        for x in ("decode, 1K keys", "decode, window 4K, 32K keys", "chunk of a prompt, 4K keys")
    ),
    *(("attention-backward", x) for x in ("32/8 heads", "window 1K", "packed")),
    *(("attention-decode", x) for x in ("1K keys", "heads of 64, 1K keys", "8K keys, 4 tokens")),
]


def attended(q, k, v, is_causal=False, window_size_left=-1, window_size_right=-1):
    """One sequence [token, head, dim]; causal is to the right end, as in the library."""
    own = torch.arange(len(k) - len(q), len(k))[:, None]
    keys, right = torch.arange(len(k)), 0 if is_causal else window_size_right
    seen = (keys <= own + right) | (right < 0)
    seen = seen & (keys >= own - window_size_left) if window_size_left >= 0 else seen
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1).float() for x in (k, v))
    scores = torch.einsum("mhd,nhd->hmn", q.float(), k) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("hmn,nhd->mhd", weights, v).to(q.dtype)


def attended_all(q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=0, max_seqlen_k=0, **masks):
    if cu_seqlens_q is None:
        return torch.stack([attended(*x, **masks) for x in zip(q, k, v, strict=True)])
    assert cu_seqlens_q.dtype == torch.int32 and torch.equal(cu_seqlens_q, cu_seqlens_k)
    ends = [slice(a, b) for a, b in pairwise(cu_seqlens_q.tolist())]
    assert max_seqlen_q == max_seqlen_k == max(s.stop - s.start for s in ends)
    return torch.cat([attended(q[s], k[s], v[s], **masks) for s in ends])


def turned(x, cos, sin, first, interleaved):
    angles = torch.atan2(sin.double(), cos.double())[first : first + x.shape[1], None]
    return rotate(x.double(), angles, interleaved, interleaved).to(x.dtype)


def fwd(q, k, v, k_new=None, v_new=None, page_table=None, seqused_k=None, rotary_cos=None, rotary_sin=None,
        is_rotary_interleaved=False, **more):  # fmt: skip
    if k_new is None and page_table is not None:
        k, v = (x[page_table].flatten(1, 2) for x in (k, v))
        rows = zip(q, k, v, seqused_k.tolist(), strict=True)
        return torch.stack([attended(a, b[:n], c[:n], **more) for a, b, c, n in rows]), None, None, None
    if k_new is None:
        return attended_all(q, k, v, **more), None, None, None
    assert {page_table.dtype, seqused_k.dtype} == {torch.int32} and rotary_cos.dtype == q.dtype
    assert len(rotary_cos) >= page_table.shape[1] * k.shape[1]
    found = []
    for i, first in enumerate(seqused_k.tolist()):
        table = rotary_cos, rotary_sin, first, is_rotary_interleaved
        places = [divmod(n, k.shape[1]) for n in range(first + k_new.shape[1])]
        at = [(int(page_table[i, page]), slot) for page, slot in places]
        for n, (page, slot) in enumerate(at[first:]):
            k[page, slot], v[page, slot] = turned(k_new[i][None], *table)[0, n], v_new[i, n]
        keys, values = (torch.stack([x[page, slot] for page, slot in at]) for x in (k, v))
        found.append(attended(turned(q[i][None], *table)[0], keys, values, **more))
    return torch.stack(found), None, None, None


def bwd(dout, q, k, v, out, lse, deterministic=False, **more):
    assert deterministic is True
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(attended_all(*leaves, **more), leaves, dout)


def adapter(name, tool, monkeypatch):
    monkeypatch.setattr(flash_attn_3, "load", lambda: SimpleNamespace(fwd=fwd, bwd=bwd))
    return flash_attn_3.adapter(name, tool)


def prepared(name, suite, label, shapes, tool, monkeypatch):
    case = case_of({**shapes[suite][label], "dtype": "bf16"})
    made = adapter(name, tool, monkeypatch)
    return case, getattr(made, f"prepare_{case.operation}")(case)


@pytest.mark.parametrize(("suite", "label"), CASES)
def test_chain_is_right(suite, label, shapes, tool, monkeypatch):
    name = "ropekit + FA3" + " deterministic" * suite.endswith("backward")
    case, run = prepared(name, suite, label, shapes, tool, monkeypatch)
    assert 0 < case.check(run)["worst"] < 1


@pytest.mark.parametrize("label", [label for suite, label in CASES if suite == "attention-decode"])
def test_what_it_appends_is_attended(label, shapes, tool, monkeypatch):
    case, run = prepared("FlashAttention 3", "attention-decode", label, shapes, tool, monkeypatch)
    assert 0 < case.check(run)["worst"] < 1
    for x in case.tensors(0)[1:]:  # without what is appended the answer is another one
        x.unflatten(0, (case.batch, -1))[:, case.keys - case.tokens : case.keys] = float("nan")
    assert run(0).isfinite().all()


def test_what_it_lacks_is_declined(shapes, tool, monkeypatch):
    for name, suite, label, reason in (
        ("FlashAttention 3", "attention", "32/8 heads", "where it appends alone"),
        ("ropekit + FA3 deterministic", "attention", "32/8 heads", "always is"),
        ("FlashAttention 3", "attention-decode", "fp8, 1K keys", "caches of q's type"),
        ("ropekit + FA3", "attention-decode", "MLA, 1K keys", "heads of at most 256"),
        ("FlashAttention 3", "attention-backward", "32/8 heads", "no gradient"),
    ):
        with pytest.raises(Declined, match=reason):
            prepared(name, suite, label, shapes, tool, monkeypatch)
    wide = {**shapes["attention"]["32/8 heads"], "head_dim": 288, "rotary_dim": 288, "dtype": "bf16"}
    dims = dict.fromkeys(("head_dim", "rotary_dim", "k_head_dim"), 288)
    wide = {**shapes["attention"]["32/8 heads"], **dims, "dtype": "bf16"}
    with pytest.raises(Declined, match="heads of at most 256"):
        adapter("ropekit + FA3", tool, monkeypatch).prepare_attention(case_of(wide))


@pytest.mark.parametrize("found", [None, "empty"])
def test_a_wheel_without_the_library_says_so(found, tmp_path, monkeypatch):
    spec = found and SimpleNamespace(submodule_search_locations=[tmp_path])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    with pytest.raises(ImportError, match="xformers"):
        flash_attn_3.load()
    assert "xformers" not in sys.modules
