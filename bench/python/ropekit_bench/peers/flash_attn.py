"""flash-attn's Triton rotary, one launch a tensor, out of place."""

import importlib
import importlib.util
import sys
import types

from ropekit_bench.cases.base import nbytes
from ropekit_bench.peers import require


def load():
    """The rotary module alone: the package's own __init__ needs a compiled attention."""
    package = types.ModuleType("flash_attn")
    package.__path__ = importlib.util.find_spec("flash_attn").submodule_search_locations
    sys.modules.setdefault("flash_attn", package)
    return importlib.import_module("flash_attn.ops.triton.rotary").apply_rotary


class adapter:
    kernel = "flash_attn.ops.triton.rotary.apply_rotary"

    def __init__(self, name, tool):
        self.rotate = load()

    def prepare(self, case):
        require(case.shape["position_ids"] != "random", "positions of a row follow each other")
        cos, sin = (t.to(case.dtype) for t in case.table(case.positions[0]))
        self.table_bytes = nbytes((cos, sin))
        rotate, options = self.rotate, {"interleaved": case.interleaved, "inplace": case.shape["in_place"]}

        def run(slot):
            return tuple(None if x is None else rotate(x, cos, sin, **options) for x in case.inputs[slot])

        return run
