"""FlashAttention 3: a library in the wheel of xformers, of PyTorch's stable ABI, which needs libcudart.so.12.
It reads a prompt's keys in pages. Without our rotation it rotates and appends new tokens where it attends."""

import importlib.util
from pathlib import Path

import torch

from ropekit_bench.cases.base import nbytes
from ropekit_bench.peers import require
from ropekit_bench.peers.chain import Chain

HEAD_DIM_MOST = 256


def load():
    """The operators. xformers itself, which asks for one version of PyTorch, is not imported."""
    spec = importlib.util.find_spec("xformers")
    for folder in spec.submodule_search_locations if spec else ():
        if (path := Path(folder, "flash_attn_3", "_C.so")).exists():
            torch.ops.load_library(path)
            return torch.ops.flash_attn_3
    raise ImportError("no xformers with flash_attn_3/_C.so is installed")


def seen(case):
    """What the operators are told of masks."""
    if case.window:
        return {"window_size_left": case.window - 1, "window_size_right": 0}
    return {"is_causal": case.causal}


def packed(case):
    """What they are told of packed sequences; nothing of rows."""
    if "cu_seqlens" not in case.shape:
        return {}
    bounds, most = case.boundary_list.int(), max(case.q_lengths)
    ends = {f"cu_seqlens_{x}": bounds for x in "qk"}
    return {**ends, **{f"max_seqlen_{x}": most for x in "qk"}}


def arranged(case, *tensors):
    """Packed sequences as they lie, rows [sequence, token, head, dim], with the keys that there are."""
    if "cu_seqlens" in case.shape:
        return tensors
    return [x.unflatten(0, (case.batch, -1))[:, : case.keys] for x in tensors]


def in_pages(case, q, *caches):
    """The same, [page, slot, head, dim] of keys and values, and what operators are told of pages."""
    rows, pages = q.unflatten(0, (case.batch, -1)), (x.unflatten(0, (-1, case.page_size)) for x in caches)
    return (rows, *pages), {"page_table": case.page_table.int(), "seqused_k": case.length_list.int()}


class adapter(Chain):
    attention = "flash_attn_3.fwd"

    def __init__(self, name, tool):
        super().__init__(name, tool)
        self.operators, self.appends = load(), name == "FlashAttention 3"

    def require_case(self, case):
        require(case.dtype in (torch.float16, torch.bfloat16), "f16 and bf16 alone")
        require(case.shape["head_dim"] <= HEAD_DIM_MOST, f"heads of at most {HEAD_DIM_MOST}")

    def prepare_attention(self, case):
        require(not self.appends, "rotates where it appends alone")
        return super().prepare_attention(case)

    def prepare_decode(self, case):
        if not self.appends:
            return super().prepare_decode(case)
        self.require_case(case)
        require(not case.is_narrow, "caches of q's type alone")
        self.kernel = f"{self.attention}, which rotates and appends"
        tensors = [in_pages(case, *case.tensors(slot))[0] for slot in range(case.sets)]
        new = dict(zip(("k_new", "v_new"), case.new_tokens, strict=True))
        places = torch.arange(case.pages_each * case.page_size, device=case.device)
        cos, sin = (t.to(case.dtype) for t in case.table(places))
        self.table_bytes = nbytes((cos[: case.tokens], sin[: case.tokens]))
        options = {
            **new,
            **seen(case),
            "page_table": case.page_table.int(),
            "seqused_k": (case.length_list - case.tokens).int(),
            "rotary_cos": cos,
            "rotary_sin": sin,
            "is_rotary_interleaved": case.interleaved,
        }
        fwd = self.operators.fwd
        return lambda slot: fwd(*tensors[slot], **options)[0]

    def attending(self, case, q, k, v):
        self.require_case(case)
        tensors, options, fwd = arranged(case, q, k, v), {**seen(case), **packed(case)}, self.operators.fwd
        if case.cached and case.operation == "attention":
            tensors, pages = in_pages(case, q, k, v)
            options |= pages
        return lambda: fwd(*tensors, **options)[0]

    def gradients(self, case, q, k, v, dout):
        require(not self.appends, "has no gradient of a rotation")
        self.require_case(case)
        options = {**seen(case), **packed(case)}
        order, (*tensors, dout) = {"deterministic": self.is_deterministic}, arranged(case, q, k, v, dout)
        fwd, bwd = self.operators.fwd, self.operators.bwd

        def run():
            out, lse, *_ = fwd(*tensors, **options)
            found = bwd(dout, *tensors, out, lse, **options, **order)[:3]
            return out, *(x.view(-1, *x.shape[-2:]) for x in found)

        return run
