"""libropekit through ctypes: rope_apply on the caller's memory, and the copies beside which it is timed.

Structures are those of <ropekit/rope.h>."""

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_void_p

DTYPES = {"f32": 1, "f16": 2, "bf16": 3, "f64": 4, "f8e4m3": 7}
PAIRINGS = {"half-split": 1, "interleaved": 2}
DIRECTIONS = {"forward": 1, "transpose": 2, "inverse": 3}
COPY, UPDATE = 3, 4


def several(kind, *names):
    return tuple((name, kind) for name in names)


class Desc(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        *several(c_int32, "dtype", "head_dim", "rotary_dim", "rotary_offset", "k_head_dim"),
        *several(c_int32, "k_rotary_offset", "pairing_in", "pairing_out", "direction", "angle_mode"),
        *several(c_int32, "arithmetic", "rope_type"),
        *several(c_double, "rope_theta", "factor", "low_freq_factor", "high_freq_factor", "beta_fast"),
        *several(c_double, "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "alpha"),
        *several(c_double, "partial_rotary_factor", "short_mscale", "long_mscale", "xpos_scale_base"),
        *several(c_int64, "xpos_center", "original_max_position_embeddings", "max_position_embeddings"),
        ("sequence_length", c_int64),
        *several(c_void_p, "short_factor", "long_factor", "inv_freq"),
        *several(c_int32, "factor_count", "truncate", "longrope_select", "position_dtype", "axes"),
        *several(c_int32, "axis_layout", "axis_frequency"),
        ("sections", c_int32 * 4),
        ("pair_axis", c_void_p),
        *several(c_int32, "shard", "shard_rank", "shard_size", "table_dtype", "table_width"),
        *several(c_int32, "out_of_range", "device", "launch"),
        *several(c_char_p, "backend", "kernel"),
    )


class Tensor(Structure):
    _fields_ = (
        ("in_", c_void_p),
        ("out", c_void_p),
        ("heads", c_int64),
        ("in_stride", c_int64 * 4),
        ("out_stride", c_int64 * 4),
    )


class Args(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("batch", c_int64),
        ("tokens", c_int64),
        ("q", Tensor),
        ("k", Tensor),
        ("position_offset", c_int64),
        ("position_ids", c_void_p),
        ("position_stride", c_int64 * 3),
        ("sequence_offsets", c_void_p),
        ("cu_seqlens", c_void_p),
        ("sequences", c_int64),
        ("sequence_lengths", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("table_rows", c_int64),
        ("table_stride", c_int64 * 3),
        ("position_flag", c_void_p),
        ("stream", c_void_p),
    )


class Timing(Structure):
    _fields_ = (
        ("struct_size", c_size_t),
        ("kind", c_int32),
        ("graph", c_int32),
        ("iterations", c_int64),
        ("plan", c_void_p),
        ("args", c_void_p),
        ("args_count", c_int64),
        ("target", c_void_p),
        ("source", c_void_p),
        ("bytes", c_size_t),
        ("pitch", c_size_t),
        ("candidate", c_int32),
        ("seconds", c_double),
        ("host_seconds", c_double),
    )


class RopeError(Exception):
    """A call that failed, with the library's text."""


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.rope_last_error.restype = c_char_p
        self.c.rope_plan_kernel.restype = c_char_p
        self.c.rope_device_kernel.restype = c_char_p
        self.c.rope_plan_kernel_of.restype = c_char_p
        self.c.rope_plan_kernel_of.argtypes = [c_void_p, c_void_p]
        for function in ("rope_plan_kernel", "rope_plan_destroy", "rope_device_close"):
            getattr(self.c, function).argtypes = [c_void_p]
        self.c.rope_device_kernel.argtypes = [c_void_p, c_char_p, c_int32]
        self.c.rope_device_open.argtypes = [c_char_p, c_int32, POINTER(c_void_p)]
        self.c.rope_plan_create.argtypes = [POINTER(Desc), POINTER(c_void_p)]
        self.c.rope_apply.argtypes = [c_void_p, POINTER(Args)]
        self.c.rope_time.argtypes = [c_void_p, POINTER(Timing)]

    def succeed(self, status):
        if status:
            raise RopeError(self.c.rope_last_error().decode())

    def plan(self, shape):
        return Plan(self, shape)

    def device(self, backend, index):
        return Device(self, backend, index)


def describe(shape):
    """The descriptor of a case's shape."""
    desc = Desc(
        struct_size=ctypes.sizeof(Desc),
        dtype=DTYPES[shape["dtype"]],
        pairing_in=PAIRINGS[shape["pairing_in"]],
        pairing_out=PAIRINGS[shape["pairing_out"]],
        direction=DIRECTIONS[shape["direction"]],
        rope_theta=shape["rope_theta"],
    )
    for name in ("head_dim", "rotary_dim", "rotary_offset", "k_head_dim", "k_rotary_offset"):
        setattr(desc, name, shape[name])
    return desc


class Plan:
    """A plan of a case's shape; the backend is that of ROPE_BACKEND."""

    def __init__(self, library, shape):
        self.library, self.handle = library, c_void_p()
        self.apply = library.c.rope_apply
        self.create(shape)
        self.kernel = library.c.rope_plan_kernel(self.handle).decode()

    def create(self, shape):
        self.library.succeed(self.library.c.rope_plan_create(byref(describe(shape)), byref(self.handle)))

    def call(self, args):
        """A function that applies the plan to args; it keeps both."""
        apply, handle, pointer = self.apply, self.handle, byref(args)

        def run():
            status = apply(handle, pointer)
            if status:
                self.library.succeed(status)

        return run

    def __del__(self):
        if self.handle:
            self.library.c.rope_plan_destroy(self.handle)


class Device:
    def __init__(self, library, backend, index):
        self.library, self.handle = library, c_void_p()
        library.succeed(library.c.rope_device_open(backend.encode(), index, byref(self.handle)))

    def kernels(self, operation):
        kernel = self.library.c.rope_device_kernel
        names, name = [], kernel(self.handle, operation.encode(), 0)
        while name:
            names.append(name.decode())
            name = kernel(self.handle, operation.encode(), len(names))
        return names

    def traffic(self, candidate, iterations, target, source, nbytes, pitch, sets):
        """Seconds of one copy from source to target, or of one update of target without a source."""
        timing = Timing(
            struct_size=ctypes.sizeof(Timing),
            kind=COPY if source else UPDATE,
            graph=1,
            iterations=iterations,
            args_count=sets,
            target=target,
            source=source,
            bytes=nbytes,
            pitch=pitch,
            candidate=candidate,
        )
        self.library.succeed(self.library.c.rope_time(self.handle, byref(timing)))
        return timing.seconds

    def __del__(self):
        if self.handle:
            self.library.c.rope_device_close(self.handle)
