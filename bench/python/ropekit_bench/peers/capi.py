"""ropekit itself: rope_apply, rope_append and rope_attention through ctypes, on torch's stream."""

import ctypes

import torch

from ropekit_bench.append_library import AppendPlan, arguments
from ropekit_bench.attention_library import AttentionPlan, BackwardPlan, backward_arguments, saving
from ropekit_bench.attention_library import arguments as attention_arguments
from ropekit_bench.case import Declined
from ropekit_bench.library import Args, Plan, RopeError, Tensor
from ropekit_bench.peers import require
from ropekit_bench.report.model import CALL, ROTATED


def tensor(source, target):
    if source is None:
        return Tensor()
    strides = ctypes.c_int64 * 4
    return Tensor(
        in_=source.data_ptr(),
        out=target.data_ptr(),
        heads=source.shape[2],
        in_stride=strides(*source.stride()),
        out_stride=strides(*target.stride()),
    )


class adapter:
    kernel = ""
    table_bytes = 0

    def __init__(self, name, tool):
        own = name.removesuffix(ROTATED).removeprefix(CALL)
        self.library, self.rotates = tool.library, not name.endswith(ROTATED)
        self.backend = own.removeprefix(", ") or None
        self.is_part = bool(self.backend) or not self.rotates
        if self.backend:
            tool.library.device(self.backend, tool.header["device"]["index"])

    def plan(self, kind, case, *more):
        require(not self.is_part or issubclass(kind, AttentionPlan), "is of attention alone")
        try:
            plan = kind(self.library, case.shape, *more)
        except RopeError as error:
            raise Declined(str(error)) from error
        self.kernel = plan.kernel
        return plan, torch.cuda.current_stream().cuda_stream if case.device.type == "cuda" else None

    def prepare_append(self, case):
        plan, stream = self.plan(AppendPlan, case)
        calls = [plan.call(arguments(case, slot, stream)) for slot in range(case.sets)]
        results = [None if case.moves else case.q_out(slot) for slot in range(case.sets)]

        def run(slot):
            calls[slot]()
            return results[slot]

        return run

    def tensors(self, case):
        """Of each set q, k and v; None for the case's own."""
        return [None] * case.sets if self.rotates else case.rotated_tensors()

    def prepare_attention(self, case):
        plan, stream = self.plan(AttentionPlan, case, self.backend, self.rotates)
        workspace, tensors = plan.workspace(case), self.tensors(case)
        args = [attention_arguments(case, i, workspace, stream, tensors[i]) for i in range(case.sets)]
        self.kernel, calls = plan.kernel_of(args[0]), [plan.call(x) for x in args]
        results = [case.out(slot) for slot in range(case.sets)]

        def run(slot, keep=(case, workspace, tensors)):
            calls[slot]()
            return results[slot]

        return run

    def prepare_attention_backward(self, case):
        forward, stream = self.plan(AttentionPlan, case, self.backend, self.rotates)
        backward, _ = self.plan(BackwardPlan, case, self.backend, self.rotates)
        memory, tensors = (forward.workspace(case), backward.workspace(case)), self.tensors(case)
        calls, results, kept = [], [case.results(slot) for slot in range(case.sets)], [memory, tensors]
        for slot in range(case.sets):
            q, k, _ = case.tensors(slot)
            saved = [torch.empty(q.shape[:2], dtype=torch.float32, device=case.device)]
            saved += [torch.empty_like(q), torch.empty_like(k)] if self.rotates else []
            kept.append(saved)
            both = [saving(attention_arguments(case, slot, m, stream, tensors[slot]), *saved) for m in memory]
            args = both[0], backward_arguments(case, slot, both[1])
            calls.append((forward.call(args[0]), backward.call(args[1])))
        kernels = forward.kernel_of(args[0]), backward.kernel_of(args[1])
        self.kernel = "attention: {}, backward: {}".format(*kernels)

        def run(slot, keep=(case, kept)):
            attend, differentiate = calls[slot]
            attend()
            differentiate()
            return results[slot]

        return run

    def prepare(self, case):
        plan, stream = self.plan(Plan, case)
        ids = case.positions if case.shape["position_ids"] != "none" else None
        calls, outputs = [], []
        for slot in range(case.sets):
            q, k = case.whole(case.source, slot)
            q_out, k_out = case.whole(case.target, slot)
            args = Args(
                struct_size=ctypes.sizeof(Args),
                batch=q.shape[0],
                tokens=q.shape[1],
                q=tensor(q, q_out),
                k=tensor(k, k_out),
                stream=stream,
                position_ids=None if ids is None else ids.data_ptr(),
            )
            calls.append(plan.call(args))
            outputs.append(case.window((q_out, k_out)))

        def run(slot):
            calls[slot]()
            return outputs[slot]

        return run
