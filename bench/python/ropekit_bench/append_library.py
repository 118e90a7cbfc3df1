"""rope_append through ctypes. Structures are those of <ropekit/append.h>."""

import ctypes
from ctypes import POINTER, Structure, byref, c_double, c_int32, c_int64, c_size_t, c_void_p

from ropekit_bench.append_case import norm_of
from ropekit_bench.library import DTYPES, Args, Desc, Plan, Tensor, describe, several

SLOTS, FROM_CACHE, ONE_SCALE, RMS, WEIGHT, TWICE = 1, 2, 1, 1, 1, 2


class Norm(Structure):
    _fields_ = (
        *several(c_int32, "type", "scope", "offset", "dim", "weight", "weight_dtype", "rounding"),
        ("eps", c_double),
    )


class Part(Structure):
    _fields_ = (("norm", Norm), ("factor", c_double), *several(c_int32, "store_dtype", "scale"))


class AppendDesc(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("rope", Desc),
        *several(c_int32, "rotation", "v_head_dim"),
        *several(Part, "q", "k", "v"),
        *several(c_int32, "cache", "k_source"),
        *several(c_int64, "page_size", "ring"),
        *several(c_int32, "slot_dtype", "table_dtype", "k_dim_block", "v_dim_block"),
    )


class Weight(Structure):
    _fields_ = (("data", c_void_p), ("head_stride", c_int64))


class Scale(Structure):
    _fields_ = (("data", c_void_p), ("stride", c_int64 * 3))


class Cache(Structure):
    _fields_ = (("data", c_void_p), ("stride", c_int64 * 5), ("scale", Scale))


class AppendArgs(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("rope", Args),
        ("v", Tensor),
        *several(Weight, "q_weight", "k_weight", "v_weight"),
        ("q_scale", Scale),
        *several(Cache, "k_cache", "v_cache"),
        ("pages", c_int64),
        ("slots", c_void_p),
        ("slot_stride", c_int64 * 2),
        ("block_table", c_void_p),
        ("table_stride", c_int64 * 2),
        ("table_pages", c_int64),
        ("cache_starts", c_void_p),
    )


def describe_norm(norm):
    if not norm:
        return Norm()
    return Norm(type=RMS, dim=norm.get("dim", 0), weight=WEIGHT, rounding=TWICE, eps=norm["eps"])


class AppendPlan(Plan):
    """A plan of append for the shape of a case."""

    def create(self, shape):
        a, c = shape["append"], self.library.c
        c.rope_append_plan_create.argtypes = [POINTER(AppendDesc), POINTER(c_void_p)]
        c.rope_append.argtypes = [c_void_p, POINTER(AppendArgs)]
        self.apply = c.rope_append
        desc = AppendDesc(struct_size=ctypes.sizeof(AppendDesc), rope=describe(shape))
        desc.cache, desc.page_size = SLOTS, a["page_size"]
        desc.k_source = FROM_CACHE if a.get("k_source") == "cache" else 0
        desc.v_head_dim = a.get("v_head_dim", 0)
        for part in "qkv":
            store = DTYPES[a.get(f"{part}_store_dtype", shape["dtype"])]
            scale = ONE_SCALE if f"{part}_scale" in a else 0
            setattr(desc, part, Part(norm=describe_norm(norm_of(shape, part)), scale=scale))
            if f"{part}_store_dtype" in a:
                getattr(desc, part).store_dtype = store
        self.library.succeed(c.rope_append_plan_create(byref(desc), byref(self.handle)))


def weight(x):
    return Weight() if x is None else Weight(data=x.data_ptr())


def cache(x, scale):
    if x is None:
        return Cache()
    given = Scale(data=scale.data_ptr()) if x.dtype.itemsize == 1 else Scale()
    return Cache(data=x.data_ptr(), scale=given)


def read(x, target=None):
    """[token, head, dim], contiguous, as one batch row."""
    if x is None:
        return Tensor()
    out = None if target is None else target.data_ptr()
    return Tensor(in_=x.data_ptr(), out=out, heads=x.shape[1])


def arguments(case, slot, stream):
    """Of a call on a set of a case; positions count where the case gives no ids."""
    q, k, v = case.tensors(slot)
    k_cache, v_cache = case.caches(slot)
    rope = Args(struct_size=ctypes.sizeof(Args), batch=1, tokens=case.count, stream=stream)
    if case.shape["position_ids"] != "none":
        rope.position_ids = case.positions.data_ptr()
    rope.q, rope.k = read(q, None if q is None else case.q_out(slot)), read(k)
    if case.moves:
        rope.k = Tensor(heads=case.k_shape[2])
    return AppendArgs(
        struct_size=ctypes.sizeof(AppendArgs),
        rope=rope,
        v=read(v),
        q_weight=weight(case.weights[0]),
        k_weight=weight(case.weights[1]),
        k_cache=cache(k_cache, case.scale),
        v_cache=cache(v_cache, case.scale),
        pages=case.pages,
        slots=case.slots.data_ptr(),
    )
