"""libropekit through ctypes: plans and calls of every operation on the caller's memory, and the copies beside
which they are timed. Structures are those of <ropekit/rope.h>, append.h, attention.h and decode.h."""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_double, c_int32, c_int64, c_size_t, c_void_p

DTYPES = {"f32": 1, "f16": 2, "bf16": 3, "f64": 4, "f8e4m3": 7}
PAIRINGS = {"half-split": 1, "interleaved": 2}
DIRECTIONS = {"forward": 1, "transpose": 2, "inverse": 3}
COPY, UPDATE = 3, 4
SLOTS, TABLE, FROM_CACHE, ONE_SCALE = 1, 2, 2, 1
RMS, WEIGHT, TWICE = 1, 1, 2
ROTATE = {"qk": 1, "q": 2, "none": 3}
MASKS = {"causal": 1, "full": 2}
ALIGNMENT = 256  # of a workspace
TYPES = {"size": c_size_t, "i32": c_int32, "i64": c_int64, "f64": c_double, "ptr": c_void_p, "str": c_char_p}


def struct(fields):
    """A structure of declarations such as `i32 axes sections[4]`. A first member struct_size is filled in."""
    found = []
    for declaration in fields.split(";"):
        kind, *names = declaration.split()
        for name in names:
            name, _, count = name.rstrip("]").partition("[")
            found.append((name, TYPES[kind] * int(count) if count else TYPES[kind]))

    def start(self, *values, **members):
        if found[0][0] == "struct_size":
            members["struct_size"] = ctypes.sizeof(self)
        ctypes.Structure.__init__(self, *values, **members)

    return type("Struct", (ctypes.Structure,), {"_fields_": found, "__init__": start})


def known(**structs):
    TYPES.update(structs)
    return structs.values()


(Desc, Tensor) = known(
    Desc=struct(
        "size struct_size; i32 dtype head_dim rotary_dim rotary_offset k_head_dim k_rotary_offset pairing_in"
        " pairing_out direction angle_mode arithmetic rope_type; f64 rope_theta factor low_freq_factor"
        " high_freq_factor beta_fast beta_slow mscale mscale_all_dim attention_factor alpha"
        " partial_rotary_factor short_mscale long_mscale xpos_scale_base; i64 xpos_center"
        " original_max_position_embeddings max_position_embeddings sequence_length; ptr short_factor"
        " long_factor inv_freq; i32 factor_count truncate longrope_select position_dtype axes axis_layout"
        " axis_frequency sections[4]; ptr pair_axis; i32 shard shard_rank shard_size table_dtype"
        " table_width out_of_range device launch; str backend kernel"
    ),
    Tensor=struct("ptr in_ out; i64 heads in_stride[4] out_stride[4]"),
)
(Args,) = known(
    Args=struct(
        "size struct_size; i64 batch tokens; Tensor q k; i64 position_offset; ptr position_ids; i64"
        " position_stride[3]; ptr sequence_offsets cu_seqlens; i64 sequences; ptr sequence_lengths cos sin;"
        " i64 table_rows table_stride[3]; ptr position_flag stream"
    )
)
Timing = struct(
    "size struct_size; i32 kind graph; i64 iterations; ptr plan args; i64 args_count; ptr target source;"
    " size bytes pitch; i32 candidate; f64 seconds host_seconds"
)
Norm, Weight, Scale, Store, Out = known(
    Norm=struct("i32 type scope offset dim weight weight_dtype rounding; f64 eps"),
    Weight=struct("ptr data; i64 head_stride"),
    Scale=struct("ptr data; i64 stride[3]"),
    Store=struct("i32 dtype scale dim_block"),
    Out=struct("ptr data; i64 stride[4]"),
)
Part, Cache = known(
    Part=struct("Norm norm; f64 factor; i32 store_dtype scale"),
    Cache=struct("ptr data; i64 stride[5]; Scale scale"),
)
AppendDesc, AppendArgs = known(
    AppendDesc=struct(
        "size struct_size; Desc rope; i32 rotation v_head_dim; Part q k v; i32 cache k_source; i64 page_size"
        " ring; i32 slot_dtype table_dtype k_dim_block v_dim_block"
    ),
    AppendArgs=struct(
        "size struct_size; Args rope; Tensor v; Weight q_weight k_weight v_weight; Scale q_scale; Cache"
        " k_cache v_cache; i64 pages; ptr slots; i64 slot_stride[2]; ptr block_table; i64 table_stride[2]"
        " table_pages; ptr cache_starts"
    ),
)
AttentionDesc = struct(
    "size struct_size; Desc rope; i32 rotation v_head_dim mask sink_dtype; f64 scale soft_cap; i64 window"
    " window_right chunk; i32 cache table_dtype; i64 page_size ring; Store k v; str tuning;"
    " i32 nondeterministic"
)
AttentionArgs = struct(
    "size struct_size; Args rope; Tensor v; Out out; ptr lse; i64 lse_stride[3] k_tokens; ptr q_lengths"
    " k_lengths k_cu_seqlens k_position_ids; i64 k_position_stride[3]; ptr sinks tree_bits; i64"
    " tree_stride[2] tree_keys; Cache k_cache v_cache; i64 pages; ptr block_table; i64 table_stride[2]"
    " table_pages; ptr workspace; size workspace_bytes"
)
Bounds = struct("size struct_size; i64 batch tokens k_tokens sequences q_heads k_heads")
DecodeDesc = struct(
    "size struct_size; AppendDesc append; i32 mask sink_dtype; f64 scale soft_cap; i64 window window_right"
    " chunk; str tuning"
)
DecodeArgs = struct(
    "size struct_size; AppendArgs append; Out out; ptr lse; i64 lse_stride[3] k_tokens; ptr k_lengths"
    " k_position_ids; i64 k_position_stride[3]; ptr sinks tree_bits; i64 tree_stride[2] tree_keys; ptr"
    " workspace; size workspace_bytes; i64 most_tokens"
)
BackwardArgs = struct("size struct_size; ptr forward dout; i64 dout_stride[4]; Out dq dk dv; ptr dsinks")


class RopeError(Exception):
    """A call that failed, with the library's text."""


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        for name in ("last_error", "plan_kernel", "plan_kernel_of", "device_kernel"):
            getattr(self.c, f"rope_{name}").restype = c_char_p
        for name in ("plan_kernel", "plan_destroy", "device_close"):
            getattr(self.c, f"rope_{name}").argtypes = [c_void_p]
        self.c.rope_plan_kernel_of.argtypes = [c_void_p, c_void_p]
        self.c.rope_device_kernel.argtypes = [c_void_p, c_char_p, c_int32]
        self.c.rope_device_open.argtypes = [c_char_p, c_int32, POINTER(c_void_p)]
        self.c.rope_time.argtypes = [c_void_p, c_void_p]

    def succeed(self, status):
        if status:
            raise RopeError(self.c.rope_last_error().decode())

    def device(self, backend, index):
        return Device(self, backend, index)


def describe(shape, rotates=True):
    """The descriptor of a case's shape."""
    desc = Desc(dtype=DTYPES[shape["dtype"]], head_dim=shape["head_dim"])
    if rotates:
        desc.pairing_in, desc.pairing_out = (PAIRINGS[shape[f"pairing_{end}"]] for end in ("in", "out"))
        desc.direction, desc.rope_theta = DIRECTIONS[shape["direction"]], shape["rope_theta"]
        for name in ("rotary_dim", "rotary_offset", "k_head_dim", "k_rotary_offset"):
            setattr(desc, name, shape[name])
    return desc


def describe_append(shape):
    a = shape["append"]
    desc = AppendDesc(rope=describe(shape), cache=SLOTS, page_size=a["page_size"])
    desc.k_source = FROM_CACHE if a.get("k_source") == "cache" else 0
    desc.v_head_dim = a.get("v_head_dim", 0)
    for part in "qkv":
        made = Part(scale=ONE_SCALE if f"{part}_scale" in a else 0)
        if f"{part}_norm_type" in a:
            dim, eps = a.get(f"{part}_norm_dim", 0), a[f"{part}_norm_eps"]
            made.norm = Norm(type=RMS, dim=dim, weight=WEIGHT, rounding=TWICE, eps=eps)
        if f"{part}_store_dtype" in a:
            made.store_dtype = DTYPES[a[f"{part}_store_dtype"]]
        setattr(desc, part, made)
    return desc


def describe_attention(shape):
    a = shape["attention"]
    rotates = a["rotate"] != "none"
    desc = AttentionDesc(rope=describe(shape, rotates), rotation=ROTATE[a["rotate"]], mask=MASKS[a["mask"]])
    desc.window = a.get("window", 0)
    desc.nondeterministic = a.get("nondeterministic", 0)
    if "kv_cache" in a:
        desc.cache, desc.page_size = TABLE, a["page_size"]
    return desc


def describe_decode(shape):
    a = shape["attention"]
    append = AppendDesc(rope=describe(shape), cache=TABLE, page_size=a["page_size"])
    append.v_head_dim = a.get("v_head_dim", 0)
    append.k, append.v = (
        Part(
            store_dtype=DTYPES[a.get(f"{part}_store_dtype", shape["dtype"])],
            scale=ONE_SCALE if f"{part}_scale" in a else 0,
        )
        for part in "kv"
    )
    return DecodeDesc(append=append, mask=MASKS[a["mask"]], window=a.get("window", 0))


# Operation: what describes a case's shape, the function that makes a plan, and the call.
OPERATIONS = {
    "rotation": (describe, "rope_plan_create", "rope_apply"),
    "append": (describe_append, "rope_append_plan_create", "rope_append"),
    "attention": (describe_attention, "rope_attention_plan_create", "rope_attention"),
    "attention_backward": (
        describe_attention,
        "rope_attention_backward_plan_create",
        "rope_attention_backward",
    ),
    "decode": (describe_decode, "rope_decode_plan_create", "rope_decode"),
}


class Plan:
    """A plan of an operation for a case's shape; the backend is that of ROPE_BACKEND."""

    def __init__(self, library, operation, shape):
        self.library, self.handle, self.operation = library, c_void_p(), operation
        describes, create, call = OPERATIONS[operation]
        self.apply = getattr(library.c, call)
        self.apply.argtypes = [c_void_p, c_void_p]
        create = getattr(library.c, create)
        create.argtypes = [c_void_p, POINTER(c_void_p)]
        library.succeed(create(byref(describes(shape)), byref(self.handle)))
        self.kernel = library.c.rope_plan_kernel(self.handle).decode()

    def call(self, args):
        """A function that applies the plan to args; it keeps both."""
        apply, handle, pointer = self.apply, self.handle, byref(args)

        def run():
            status = apply(handle, pointer)
            if status:
                self.library.succeed(status)

        return run

    def kernel_of(self, args):
        """What a call takes."""
        name = self.library.c.rope_plan_kernel_of(self.handle, byref(args))
        if name is None:
            raise RopeError(self.library.c.rope_last_error().decode())
        return name.decode()

    def workspace(self, case):
        """Memory for one call of attention at a time: its first address and its bytes, and what keeps it."""
        import torch

        s, nbytes = case.shape, c_size_t()
        bounds = Bounds(batch=s["batch"], tokens=s["tokens"], k_tokens=case.keys)
        bounds.q_heads, bounds.k_heads = s["q_heads"], s["k_heads"]
        bounds.sequences = len(case.q_lengths) if "cu_seqlens" in s else 0
        ask = getattr(self.library.c, f"rope_{self.operation}_workspace")
        ask.argtypes = [c_void_p, c_void_p, POINTER(c_size_t)]
        self.library.succeed(ask(self.handle, byref(bounds), byref(nbytes)))
        memory = torch.empty(nbytes.value + ALIGNMENT, dtype=torch.uint8, device=case.device)
        start = -(-memory.data_ptr() // ALIGNMENT) * ALIGNMENT if nbytes.value else None
        return start, nbytes.value, memory

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
