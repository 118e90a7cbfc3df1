"""vLLM's kernels, by the operators of its compiled library: rotation in place from a table of cos and sin in
the model's dtype; for append its norm ahead of it, out of place, and its store behind it."""

import importlib.util
from pathlib import Path

import torch

from ropekit_bench.cases.append import NORM
from ropekit_bench.peers import require


def load():
    """The library alone: the package's own __init__ needs all that serving does."""
    for folder in importlib.util.find_spec("vllm").submodule_search_locations:
        for path in sorted(Path(folder).glob("_C*.so")):
            torch.ops.load_library(str(path))
    return torch.ops._C.rotary_embedding, torch.ops._C_cache_ops


class adapter:
    def __init__(self, name, tool):
        self.kernel = "vllm _C.rotary_embedding"
        self.rotate, self.caches = load()

    def table(self, case):
        rows = torch.arange(case.rows, device=case.device)
        table = torch.cat(case.table(rows), -1).to(case.dtype)
        self.table_bytes = case.selected_bytes([table])
        return table

    def prepare(self, case):
        table, positions = self.table(case), case.positions.flatten()
        flat = [tuple(None if x is None else x.flatten(0, 1) for x in pair) for pair in case.inputs]

        def run(slot):
            q, k = flat[slot]
            self.rotate(positions, q, k, q.shape[-1], table, not case.interleaved)
            return case.inputs[slot]

        return run

    def prepare_append(self, case):
        require(not case.moves, "keys in a cache do not move")
        is_mla = case.v_shape[2] == 0
        store = "concat_and_cache_mla" if is_mla else "reshape_and_cache_flash"
        self.kernel = f"vllm {'_C.rms_norm, ' * any(w is not None for w in case.weights)}_C.rotary_embedding"
        self.kernel += f", _C_cache_ops.{store}"
        kind = "fp8" if case.k_type.itemsize == 1 else "auto"
        table, positions = self.table(case), case.positions.flatten()
        calls = [(case.tensors(slot), self.pages(case, slot)) for slot in range(case.sets)]
        normed = [
            None if w is None else torch.empty_like(x[..., : len(w)])
            for w, x in zip(case.weights, calls[0][0], strict=False)
        ]
        style = not case.interleaved

        def norm(x, which):
            weight = case.weights[which]
            if weight is None:
                return x
            torch.ops._C.rms_norm(normed[which], x[..., : len(weight)].contiguous(), weight, NORM["eps"])
            return normed[which]

        def run(slot):
            (q, k, v), (k_cache, v_cache) = calls[slot]
            q = norm(q, 0)
            if is_mla:
                latent, rest = norm(k, 1)[:, 0], k[:, 0, case.shape["k_rotary_offset"] :]
                window = q[..., case.shape["rotary_offset"] :]
                self.rotate(positions, window, rest[:, None], window.shape[-1], table, style)
                pages = k_cache.flatten(2)
                self.caches.concat_and_cache_mla(latent, rest, pages, case.slots, kind, case.scale)
                return q
            k = norm(k, 1)
            self.rotate(positions, q, k, q.shape[-1], table, style)
            pages = k_cache, v_cache
            self.caches.reshape_and_cache_flash(k, v, *pages, case.slots, kind, case.scale, case.scale)
            return q

        return run

    def pages(self, case, slot):
        """vLLM takes fp8 as bytes."""
        return [x.view(torch.uint8) if x is not None and x.itemsize == 1 else x for x in case.caches(slot)]
