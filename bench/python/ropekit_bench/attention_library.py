"""rope_attention through ctypes. Structures are those of <ropekit/attention.h>."""

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_void_p

import torch

from ropekit_bench.append_library import Cache
from ropekit_bench.library import DTYPES, Args, Desc, Plan, Tensor, describe, several

TABLE, QK, Q, NONE, ALIGNMENT = 2, 1, 2, 3, 256


class Store(Structure):
    _fields_ = several(c_int32, "dtype", "scale", "dim_block")


class AttentionDesc(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("rope", Desc),
        *several(c_int32, "rotation", "v_head_dim", "mask", "sink_dtype"),
        *several(c_double, "scale", "soft_cap"),
        *several(c_int64, "window", "window_right", "chunk"),
        *several(c_int32, "cache", "table_dtype"),
        *several(c_int64, "page_size", "ring"),
        *several(Store, "k", "v"),
        ("tuning", c_char_p),
        ("nondeterministic", c_int32),
    )


class Out(Structure):
    _fields_ = (("data", c_void_p), ("stride", c_int64 * 4))


class AttentionArgs(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("rope", Args),
        ("v", Tensor),
        ("out", Out),
        ("lse", c_void_p),
        ("lse_stride", c_int64 * 3),
        ("k_tokens", c_int64),
        *several(c_void_p, "q_lengths", "k_lengths", "k_cu_seqlens", "k_position_ids"),
        ("k_position_stride", c_int64 * 3),
        *several(c_void_p, "sinks", "tree_bits"),
        ("tree_stride", c_int64 * 2),
        ("tree_keys", c_int64),
        *several(Cache, "k_cache", "v_cache"),
        ("pages", c_int64),
        ("block_table", c_void_p),
        ("table_stride", c_int64 * 2),
        ("table_pages", c_int64),
        ("workspace", c_void_p),
        ("workspace_bytes", c_size_t),
    )


class Bounds(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        *several(c_int64, "batch", "tokens", "k_tokens", "sequences", "q_heads", "k_heads"),
    )


class BackwardArgs(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("forward", POINTER(AttentionArgs)),
        ("dout", c_void_p),
        ("dout_stride", c_int64 * 4),
        *several(Out, "dq", "dk", "dv"),
        ("dsinks", c_void_p),
    )


def describe_heads(shape):
    """The descriptor of a case's shape where nothing rotates."""
    dtype, head_dim = DTYPES[shape["dtype"]], shape["head_dim"]
    return Desc(struct_size=ctypes.sizeof(Desc), dtype=dtype, head_dim=head_dim)


class AttentionPlan(Plan):
    """A plan of attention for the shape of a case: as the library chooses, or by a backend's first kernel;
    also of rotated inputs."""

    operation, arguments = "rope_attention", AttentionArgs

    def __init__(self, library, shape, backend=None, rotates=True):
        self.backend, self.rotates = backend, rotates
        super().__init__(library, shape)

    def create(self, shape):
        a, c = shape["attention"], self.library.c
        create, self.bytes_of = (getattr(c, f"{self.operation}_{n}") for n in ("plan_create", "workspace"))
        create.argtypes = [POINTER(AttentionDesc), POINTER(c_void_p)]
        self.bytes_of.argtypes = [c_void_p, POINTER(Bounds), POINTER(c_size_t)]
        self.apply = getattr(c, self.operation)
        self.apply.argtypes = [c_void_p, POINTER(self.arguments)]
        rope = describe(shape) if self.rotates else describe_heads(shape)
        desc = AttentionDesc(struct_size=ctypes.sizeof(AttentionDesc), rope=rope)
        desc.rotation = {"qk": QK, "q": Q}[a["rotate"]] if self.rotates else NONE
        desc.window = a.get("window", 0)
        desc.nondeterministic = a.get("nondeterministic", 0)
        if self.backend:
            desc.rope.backend, desc.tuning = self.backend.encode(), b""
        if "kv_cache" in a:
            desc.cache, desc.page_size = TABLE, a["page_size"]
        self.library.succeed(create(byref(desc), byref(self.handle)))

    def kernel_of(self, args):
        """What a call takes."""
        return self.library.c.rope_plan_kernel_of(self.handle, byref(args)).decode()

    def workspace(self, case):
        """Memory for one call at a time, and its bytes."""
        s, nbytes = case.shape, c_size_t()
        bounds = Bounds(
            struct_size=ctypes.sizeof(Bounds),
            batch=s["batch"],
            tokens=s["tokens"],
            k_tokens=case.keys,
            sequences=len(case.q_lengths) if "cu_seqlens" in s else 0,
            q_heads=s["q_heads"],
            k_heads=s["k_heads"],
        )
        self.library.succeed(self.bytes_of(self.handle, byref(bounds), byref(nbytes)))
        return torch.empty(nbytes.value + ALIGNMENT, dtype=torch.uint8, device=case.device), nbytes.value


class BackwardPlan(AttentionPlan):
    """A plan of attention's backward."""

    operation, arguments = "rope_attention_backward", BackwardArgs


def rotated(x, target=None):
    return Tensor(in_=x.data_ptr(), out=None if target is None else target.data_ptr(), heads=x.shape[1])


def rope_arguments(case, stream):
    """Batch, tokens and boundaries of a call."""
    packed = "cu_seqlens" in case.shape
    return Args(
        struct_size=ctypes.sizeof(Args),
        batch=case.batch,
        tokens=case.tokens,
        stream=stream,
        cu_seqlens=case.boundary_list.data_ptr() if packed else None,
        sequences=len(case.q_lengths) if packed else 0,
    )


def arguments(case, slot, workspace, stream, tensors=None):
    """Of a call on a set of a case, or on other tensors for its q, k and v."""
    q, k, v = tensors or case.tensors(slot)
    memory, nbytes = workspace
    rope = rope_arguments(case, stream)
    rope.q = rotated(q)
    args = AttentionArgs(
        struct_size=ctypes.sizeof(AttentionArgs),
        out=Out(data=case.out(slot).data_ptr()),
        k_tokens=case.keys,
        workspace=-(-memory.data_ptr() // ALIGNMENT) * ALIGNMENT if nbytes else None,
        workspace_bytes=nbytes,
    )
    if case.cached:
        rope.k, args.v = Tensor(heads=k.shape[1]), Tensor(heads=v.shape[1])
        args.k_cache, args.v_cache = Cache(data=k.data_ptr()), Cache(data=v.data_ptr())
        args.pages, args.table_pages = case.table.numel(), case.pages_each
        args.block_table, args.k_lengths = case.table.data_ptr(), case.length_list.data_ptr()
    else:
        rope.k, args.v, args.k_cu_seqlens = rotated(k), rotated(v), rope.cu_seqlens
    args.rope = rope
    return args


def saving(args, lse, *rotated):
    """The arguments of a forward that saves what its backward reads: lse and, where it rotates, q and k."""
    heads, tokens = lse.shape[1], args.rope.tokens
    args.lse = lse.data_ptr()
    if not args.rope.sequences:  # [batch, head, token], which cuDNN's backward reads where it lies
        args.lse_stride = heads * tokens, 1, tokens
    for tensor, saved in zip((args.rope.q, args.rope.k), rotated, strict=False):
        tensor.out = saved.data_ptr()
    return args


def backward_arguments(case, slot, forward):
    """Of the backward of a call with these arguments, which are kept."""
    gradients = [Out(data=x.data_ptr()) for x in case.results(slot)[1:]]
    args = BackwardArgs(
        struct_size=ctypes.sizeof(BackwardArgs),
        forward=ctypes.pointer(forward),
        dout=case.dout(slot).data_ptr(),
    )
    args.dq, args.dk, args.dv = gradients
    return args
