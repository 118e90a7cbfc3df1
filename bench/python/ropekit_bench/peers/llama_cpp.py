"""ggml of llama-cpp-python's library on the CPU, a graph on the case's memory: rotation of q and k by
ggml_rope_ext; for append its norm ahead of it and its store in rows of a cache behind it, of which ggml
places what lies between, in place where it can, as for a model."""

import ctypes
from ctypes import Structure, c_bool, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import llama_cpp
import torch

from ropekit_bench.cases.append import NORM
from ropekit_bench.peers import require

F32, F16, I32, I64 = 0, 1, 26, 27
HALF_SPLIT, INTERLEAVED = 2, 0
TYPES = {torch.float32: F32, torch.float16: F16, torch.int32: I32, torch.int64: I64}
# Nodes and leaves of a graph, and room for it with its tensors.
GRAPH_NODES, GRAPH_BYTES = 32, 1 << 14


class InitParams(Structure):
    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


def load():
    """ggml's functions, whatever library of the package holds them."""
    folder = Path(llama_cpp.__file__).parent / "lib"
    libraries = [
        ctypes.CDLL(str(path)) for name in ("base", "cpu") for path in folder.glob(f"libggml-{name}*.so")
    ]
    signatures = {
        "ggml_init": (c_void_p, [InitParams]),
        "ggml_free": (None, [c_void_p]),
        "ggml_new_tensor_4d": (c_void_p, [c_void_p, c_int] + 4 * [c_int64]),
        "ggml_new_tensor_1d": (c_void_p, [c_void_p, c_int, c_int64]),
        "ggml_rope_ext": (c_void_p, 4 * [c_void_p] + 3 * [c_int] + 6 * [c_float]),
        "ggml_rms_norm": (c_void_p, 2 * [c_void_p] + [c_float]),
        "ggml_mul": (c_void_p, 3 * [c_void_p]),
        "ggml_reshape_2d": (c_void_p, 2 * [c_void_p] + 2 * [c_int64]),
        "ggml_set_rows": (c_void_p, 4 * [c_void_p]),
        "ggml_new_graph_custom": (c_void_p, [c_void_p, c_size_t, c_bool]),
        "ggml_build_forward_expand": (None, [c_void_p, c_void_p]),
        "ggml_backend_cpu_buffer_from_ptr": (c_void_p, [c_void_p, c_size_t]),
        "ggml_backend_tensor_alloc": (c_int, 3 * [c_void_p]),
        "ggml_backend_cpu_buffer_type": (c_void_p, []),
        "ggml_gallocr_new": (c_void_p, [c_void_p]),
        "ggml_gallocr_alloc_graph": (c_bool, 2 * [c_void_p]),
        "ggml_gallocr_free": (None, [c_void_p]),
        "ggml_backend_cpu_init": (c_void_p, []),
        "ggml_backend_cpu_set_n_threads": (None, [c_void_p, c_int]),
        "ggml_backend_graph_compute": (c_int, [c_void_p, c_void_p]),
    }
    functions = {}
    for name, (result, arguments) in signatures.items():
        function = next(getattr(library, name) for library in libraries if hasattr(library, name))
        function.restype, function.argtypes = result, arguments
        functions[name.removeprefix("ggml_")] = function
    return functions


class Context:
    """Tensors and graphs of a case, and the memory that all graphs share for what lies between."""

    def __init__(self, ggml, graphs):
        self.ggml, self.handle = ggml, ggml["init"](InitParams(graphs * GRAPH_BYTES, None, True))
        self.between = ggml["gallocr_new"](ggml["backend_cpu_buffer_type"]())

    def __del__(self):
        self.ggml["gallocr_free"](self.between)
        self.ggml["free"](self.handle)

    def graph(self, results):
        """Of tensors that it ends with."""
        graph = self.ggml["new_graph_custom"](self.handle, GRAPH_NODES, False)
        for result in results:
            self.ggml["build_forward_expand"](graph, result)
        require(self.ggml["gallocr_alloc_graph"](self.between, graph), "ggml has no memory")
        return graph

    def place(self, tensor, memory):
        """Puts a tensor of a graph on the memory of a torch tensor."""
        buffer = self.ggml["backend_cpu_buffer_from_ptr"](memory.data_ptr(), memory.nbytes)
        require(
            self.ggml["backend_tensor_alloc"](buffer, tensor, memory.data_ptr()) == 0, "ggml took no memory"
        )
        return tensor

    def tensor(self, x):
        """A torch tensor as one of ggml's, which name the innermost dimension first."""
        shape = *reversed(x.shape), *(4 - x.dim()) * [1]
        return self.place(self.ggml["new_tensor_4d"](self.handle, TYPES[x.dtype], *shape), x)

    def normed(self, x, weight):
        if weight is None:
            return x
        return self.ggml["mul"](
            self.handle, self.ggml["rms_norm"](self.handle, x, NORM["eps"]), self.tensor(weight)
        )

    def turned(self, x, ids, case):
        mode = INTERLEAVED if case.interleaved else HALF_SPLIT
        numbers = case.rotary_dim, mode, 0, case.shape["rope_theta"], 1.0, 0.0, 1.0, 32.0, 1.0
        return self.ggml["rope_ext"](self.handle, x, ids, None, *numbers)

    def stored(self, x, cache, slots):
        """Heads of each token, as one row, to the row of its slot."""
        rows = cache.flatten(0, 1).flatten(1)
        x = self.ggml["reshape_2d"](self.handle, x, rows.shape[1], len(slots))
        return self.ggml["set_rows"](self.handle, self.tensor(rows), x, self.tensor(slots))


class adapter:
    table_bytes = 0

    def __init__(self, name, tool):
        self.ggml, self.kernel = load(), "ggml_rope_ext"
        self.backend = self.ggml["backend_cpu_init"]()
        self.ggml["backend_cpu_set_n_threads"](self.backend, tool.threads)

    def prepare(self, case):
        require(case.dtype in TYPES, "f32 and f16 alone")
        require(case.is_whole, "rotates whole heads")
        require(case.q_shape[0] == 1 or case.shape["position_ids"] != "random", "rows share positions")
        positions, context = case.positions[0].int().contiguous(), Context(self.ggml, case.sets)

        def results(slot):
            ids = context.tensor(positions)
            for x, y in zip(case.whole(case.source, slot), case.whole(case.target, slot), strict=True):
                if x is not None:
                    yield context.place(context.turned(context.tensor(x), ids, case), y)

        outputs = [case.whole(case.target, slot) for slot in range(case.sets)]
        return self.runner(case, context, results, outputs, positions)

    def prepare_append(self, case):
        require(case.dtype == torch.float32, "its norm and its store read f32 alone")
        require({case.k_type, case.v_type} <= TYPES.keys(), "f32 and f16 caches alone")
        require(not case.moves and case.is_whole and case.v_shape[2], "whole heads of q, k and v alone")
        norms = any(w is not None for w in case.weights)
        self.kernel = f"{'ggml_rms_norm, ggml_mul, ' * norms}ggml_rope_ext, ggml_set_rows"
        positions, context = case.positions.flatten().int(), Context(self.ggml, case.sets)

        def results(slot):
            ids, caches = context.tensor(positions), case.caches(slot)
            q, k, v = map(context.tensor, case.tensors(slot))
            q, k = (
                context.turned(context.normed(x, w), ids, case)
                for x, w in zip((q, k), case.weights, strict=True)
            )
            yield context.place(q, case.q_out(slot))
            yield context.stored(k, caches[0], case.slots)
            yield context.stored(v, caches[1], case.slots)

        outputs = [case.q_out(slot) for slot in range(case.sets)]
        return self.runner(case, context, results, outputs, positions)

    def runner(self, case, context, results, outputs, positions):
        graphs = [context.graph(list(results(slot))) for slot in range(case.sets)]
        compute, backend = self.ggml["backend_graph_compute"], self.backend

        def run(slot, _alive=(case, context, positions)):
            if compute(backend, graphs[slot]):
                raise RuntimeError("ggml_backend_graph_compute failed")
            return outputs[slot]

        return run
