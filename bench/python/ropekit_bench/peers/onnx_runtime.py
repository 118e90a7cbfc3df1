"""ONNX Runtime's RotaryEmbedding (ONNX opset 23) on the CPU, q and k in one model, on the case's memory."""

import numpy
import onnxruntime
from onnx import TensorProto, helper

from ropekit_bench.peers import require

ELEMENTS = {"f32": (TensorProto.FLOAT, numpy.float32), "f16": (TensorProto.FLOAT16, numpy.float16)}


def build(case, element):
    """A model over [batch, token, heads * dim]."""
    batch, tokens = case.q_shape[:2]
    nodes, inputs, outputs = [], [], []
    for name, shape in (("q", case.q_shape), ("k", case.k_shape)):
        if shape[2]:
            width = shape[2] * shape[3]
            inputs.append(helper.make_tensor_value_info(name, element, [batch, tokens, width]))
            outputs.append(helper.make_tensor_value_info(f"{name}_out", element, [batch, tokens, width]))
            nodes.append(
                helper.make_node(
                    "RotaryEmbedding",
                    [name, "cos", "sin", "positions"],
                    [f"{name}_out"],
                    interleaved=int(case.interleaved),
                    num_heads=shape[2],
                )
            )
    for name in ("cos", "sin"):
        inputs.append(helper.make_tensor_value_info(name, element, [case.rows, case.rotary_dim // 2]))
    inputs.append(helper.make_tensor_value_info("positions", TensorProto.INT64, [batch, tokens]))
    graph = helper.make_graph(nodes, "rope", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


class adapter:
    kernel = "RotaryEmbedding, CPUExecutionProvider"

    def __init__(self, name, tool):
        self.threads = tool.threads

    def prepare(self, case):
        require(case.shape["dtype"] in ELEMENTS, "f32 and f16 alone")
        require(case.is_whole, "rotates whole heads that lie densely")
        import torch

        element, dtype = ELEMENTS[case.shape["dtype"]]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        session = onnxruntime.InferenceSession(
            build(case, element).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        tables = [t.to(case.dtype) for t in case.table(torch.arange(case.rows))]
        self.table_bytes = case.selected_bytes(tables)
        constants = {
            "cos": (*tables[:1], dtype),
            "sin": (*tables[1:], dtype),
            "positions": (case.positions, numpy.int64),
        }
        bindings, outputs = [], []
        for slot in range(case.sets):
            binding = session.io_binding()
            source, target = case.whole(case.source, slot), case.whole(case.target, slot)
            for name, (tensor, kind) in constants.items():
                binding.bind_input(name, "cpu", 0, kind, tensor.shape, tensor.data_ptr())
            for name, x, y in zip("qk", source, target, strict=True):
                if x is not None:
                    flat = [*x.shape[:2], x.shape[2] * x.shape[3]]
                    binding.bind_input(name, "cpu", 0, dtype, flat, x.data_ptr())
                    binding.bind_output(f"{name}_out", "cpu", 0, dtype, flat, y.data_ptr())
            bindings.append(binding)
            outputs.append(target)

        def run(slot, _alive=tables):
            session.run_with_iobinding(bindings[slot])
            return outputs[slot]

        return run
