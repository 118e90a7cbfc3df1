"""ggml_rope_ext of llama-cpp-python's library on the CPU, a graph of q and k on the case's memory."""

import ctypes
from ctypes import Structure, c_bool, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import llama_cpp

from ropekit_bench.peers import require

F32, F16, I32 = 0, 1, 26
HALF_SPLIT, INTERLEAVED = 2, 0
TYPES = {"f32": F32, "f16": F16}
# Nodes and leaves of a graph, and room for it with its tensors.
GRAPH_NODES, GRAPH_BYTES = 8, 1 << 13


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
        "ggml_new_graph_custom": (c_void_p, [c_void_p, c_size_t, c_bool]),
        "ggml_build_forward_expand": (None, [c_void_p, c_void_p]),
        "ggml_backend_cpu_buffer_from_ptr": (c_void_p, [c_void_p, c_size_t]),
        "ggml_backend_tensor_alloc": (c_int, 3 * [c_void_p]),
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
    """Tensors and graphs of a case."""

    def __init__(self, ggml, size):
        self.free, self.handle = ggml["free"], ggml["init"](InitParams(size, None, True))

    def __del__(self):
        self.free(self.handle)


class adapter:
    kernel = "ggml_rope_ext"
    table_bytes = 0

    def __init__(self, name, tool):
        self.ggml = load()
        self.backend = self.ggml["backend_cpu_init"]()
        self.ggml["backend_cpu_set_n_threads"](self.backend, tool.threads)

    def prepare(self, case):
        require(case.shape["dtype"] in TYPES, "f32 and f16 alone")
        require(case.is_whole, "rotates whole heads")
        require(not case.backward, "forward alone is compared")
        require(case.q_shape[0] == 1 or case.shape["position_ids"] != "random", "rows share positions")
        positions = case.positions[0].int().contiguous()
        context = Context(self.ggml, case.sets * GRAPH_BYTES)
        graphs = [self.graph(context.handle, case, slot, positions) for slot in range(case.sets)]
        outputs = [case.whole(case.target, slot) for slot in range(case.sets)]
        compute, backend = self.ggml["backend_graph_compute"], self.backend

        def run(slot, _alive=(positions, context)):
            if compute(backend, graphs[slot]):
                raise RuntimeError("ggml_backend_graph_compute failed")
            return outputs[slot]

        return run

    def place(self, tensor, memory):
        """Puts a tensor of the graph on the memory of a torch tensor."""
        buffer = self.ggml["backend_cpu_buffer_from_ptr"](memory.data_ptr(), memory.nbytes)
        require(
            self.ggml["backend_tensor_alloc"](buffer, tensor, memory.data_ptr()) == 0, "ggml took no memory"
        )

    def graph(self, context, case, slot, positions):
        g = self.ggml
        graph = g["new_graph_custom"](context, GRAPH_NODES, False)
        ids = g["new_tensor_1d"](context, I32, len(positions))
        self.place(ids, positions)
        mode = INTERLEAVED if case.interleaved else HALF_SPLIT
        for x, y in zip(case.whole(case.source, slot), case.whole(case.target, slot), strict=True):
            if x is not None:
                source = g["new_tensor_4d"](context, TYPES[case.shape["dtype"]], *reversed(x.shape))
                self.place(source, x)
                result = g["rope_ext"](
                    context,
                    source,
                    ids,
                    None,
                    case.rotary_dim,
                    mode,
                    0,
                    case.shape["rope_theta"],
                    1.0,
                    0.0,
                    1.0,
                    32.0,
                    1.0,
                )
                self.place(result, y)
                g["build_forward_expand"](graph, result)
        return graph
