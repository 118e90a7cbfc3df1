"""ropekit itself: rope_apply, rope_append, rope_attention and rope_decode by ctypes, on torch's stream."""

import ctypes

import torch

from ropekit_bench.cases.base import Declined
from ropekit_bench.library import (
    AppendArgs,
    Args,
    AttentionArgs,
    BackwardArgs,
    Cache,
    DecodeArgs,
    Out,
    Plan,
    RopeError,
    Scale,
    Tensor,
    Weight,
)


def stream_of(case):
    return torch.cuda.current_stream().cuda_stream if case.device.type == "cuda" else None


def strided(source, target):
    """q or k [batch, token, head, dim] of a rotation."""
    if source is None:
        return Tensor()
    strides = ctypes.c_int64 * 4
    ends = {"in_stride": strides(*source.stride()), "out_stride": strides(*target.stride())}
    return Tensor(in_=source.data_ptr(), out=target.data_ptr(), heads=source.shape[2], **ends)


def dense(x, target=None):
    """A tensor [token, head, dim]."""
    if x is None:
        return Tensor()
    return Tensor(in_=x.data_ptr(), out=None if target is None else target.data_ptr(), heads=x.shape[1])


def pages(x, scale):
    if x is None:
        return Cache()
    return Cache(data=x.data_ptr(), scale=Scale(data=scale.data_ptr()) if x.dtype.itemsize == 1 else Scale())


def append_arguments(case, slot):
    """Of a call on a set of a case; positions count where the case gives no ids."""
    q, k, v = case.tensors(slot)
    rope = Args(batch=1, tokens=case.count, stream=stream_of(case))
    if case.shape["position_ids"] != "none":
        rope.position_ids = case.positions.data_ptr()
    rope.q = dense(q, None if q is None else case.q_out(slot))
    rope.k = Tensor(heads=case.k_shape[2]) if case.moves else dense(k)
    args = AppendArgs(rope=rope, v=dense(v), pages=case.pages, slots=case.slots.data_ptr())
    args.k_cache, args.v_cache = (pages(x, case.scale) for x in case.caches(slot))
    for name, x in zip(("q_weight", "k_weight"), case.weights, strict=True):
        setattr(args, name, Weight() if x is None else Weight(data=x.data_ptr()))
    return args


def attention_batch(case):
    """Batch, tokens and boundaries of a call."""
    args = Args(batch=case.batch, tokens=case.tokens, stream=stream_of(case))
    if "cu_seqlens" in case.shape:
        args.cu_seqlens, args.sequences = case.boundary_list.data_ptr(), len(case.q_lengths)
    return args


def attention_arguments(case, slot, workspace):
    q, k, v = case.tensors(slot)
    rope = attention_batch(case)
    args = AttentionArgs(out=Out(data=case.out(slot).data_ptr()), k_tokens=case.keys)
    args.workspace, args.workspace_bytes, _ = workspace
    rope.q, rope.k, args.v = dense(q), dense(k), dense(v)
    if case.cached:
        rope.k, args.v = Tensor(heads=k.shape[1]), Tensor(heads=v.shape[1])
        args.k_cache, args.v_cache = Cache(data=k.data_ptr()), Cache(data=v.data_ptr())
        args.pages, args.table_pages = case.page_table.numel(), case.pages_each
        args.block_table, args.k_lengths = case.page_table.data_ptr(), case.length_list.data_ptr()
    else:
        args.k_cu_seqlens = rope.cu_seqlens
    args.rope = rope
    return args


def decode_arguments(case, slot, workspace):
    q, *caches = case.tensors(slot)
    new = case.new_tokens
    rope = Args(batch=case.batch, tokens=case.tokens, stream=stream_of(case))
    rope.q, rope.k = dense(q), dense(new[0].flatten(0, 1))
    rope.sequence_offsets, rope.position_offset = case.length_list.data_ptr(), -case.tokens
    append = AppendArgs(rope=rope, v=Tensor() if case.v_in_k else dense(new[1].flatten(0, 1)))
    append.k_cache, append.v_cache = (pages(x, case.scale) for x in caches)
    if case.v_in_k:
        append.v_cache.stride = (case.page_size * caches[0].stride(0), *caches[0].stride()[:2], 0, 1)
    append.pages, append.table_pages = case.page_table.numel(), case.pages_each
    append.block_table = case.page_table.data_ptr()
    args = DecodeArgs(append=append, out=Out(data=case.out(slot).data_ptr()), k_tokens=case.keys)
    args.k_lengths = case.length_list.data_ptr()
    args.workspace, args.workspace_bytes, _ = workspace
    return args


def saving(case, args, lse, q, k):
    """The arguments of a forward that saves what its backward reads: lse, and q and k that it rotates."""
    heads, tokens = lse.shape[1], args.rope.tokens
    args.lse = lse.data_ptr()
    if not args.rope.sequences:  # [batch, head, token], which cuDNN's backward reads where it lies
        args.lse_stride = heads * tokens, 1, tokens
    if case.rotates:
        args.rope.q.out, args.rope.k.out = q.data_ptr(), k.data_ptr()
    return args


def backward_arguments(case, slot, forward):
    """Of the backward of a call, whose arguments must outlive these."""
    args = BackwardArgs(forward=ctypes.addressof(forward), dout=case.dout(slot).data_ptr())
    args.dq, args.dk, args.dv = (Out(data=x.data_ptr()) for x in case.results(slot)[1:])
    return args


def caller(calls, results, *kept):
    """run(slot), which keeps what its arguments point into."""

    def run(slot, _alive=kept):
        for call in calls[slot]:
            call()
        return results[slot]

    return run


class adapter:
    kernel = ""
    table_bytes = 0

    def __init__(self, name, tool):
        self.library = tool.library

    def plan(self, operation, shape):
        try:
            plan = Plan(self.library, operation, shape)
        except RopeError as error:
            raise Declined(str(error)) from error
        self.kernel = plan.kernel
        return plan

    def prepare(self, case):
        plan = self.plan("rotation", case.shape)
        calls, results = [], []
        for slot in range(case.sets):
            both = case.whole(case.source, slot), case.whole(case.target, slot)
            args = Args(batch=case.shape["batch"], tokens=case.shape["tokens"], stream=stream_of(case))
            args.q, args.k = (strided(x, y) for x, y in zip(*both, strict=True))
            if case.shape["position_ids"] != "none":
                args.position_ids = case.positions.data_ptr()
            calls.append([plan.call(args)])
            results.append(case.window(both[1]))
        return caller(calls, results, case)

    def prepare_append(self, case):
        plan = self.plan("append", case.shape)
        calls = [[plan.call(append_arguments(case, slot))] for slot in range(case.sets)]
        return caller(calls, [None if case.moves else case.q_out(i) for i in range(case.sets)], case)

    def prepare_attention(self, case, arguments=attention_arguments):
        plan = self.plan(case.operation, case.shape)
        workspace = plan.workspace(case)
        args = [arguments(case, slot, workspace) for slot in range(case.sets)]
        self.kernel = plan.kernel_of(args[0])
        return caller(
            [[plan.call(x)] for x in args], [case.out(i) for i in range(case.sets)], case, workspace
        )

    def prepare_decode(self, case):
        return self.prepare_attention(case, decode_arguments)

    def prepare_attention_backward(self, case):
        plans = self.plan("attention", case.shape), self.plan("attention_backward", case.shape)
        memory = [plan.workspace(case) for plan in plans]
        calls, kept = [], [case, memory]
        for slot in range(case.sets):
            q, k, _ = case.tensors(slot)
            lse = torch.empty(q.shape[:2], dtype=torch.float32, device=case.device)
            saved = lse, torch.empty_like(q), torch.empty_like(k)
            forward, again = (saving(case, attention_arguments(case, slot, m), *saved) for m in memory)
            args = forward, backward_arguments(case, slot, again)
            calls.append([plan.call(x) for plan, x in zip(plans, args, strict=True)])
            kept.append((saved, again))
        kernels = [plan.kernel_of(x) for plan, x in zip(plans, args, strict=True)]
        self.kernel = "attention: {}, backward: {}".format(*kernels)
        return caller(calls, [case.results(i) for i in range(case.sets)], kept)
