/*
 * From a call to its launch: kernel, grid, block and parameters, in nanoseconds of integer
 * arithmetic. The first kernel that fits the call is taken: plain, window, vector, generic.
 */
#include "backends/gpu/rope/launch.h"

#include "backends/gpu/platform/tuning.h"

#include "common/math/portable.h"

/* Most units of a tensor, which the fields of each kernel's parameters hold. */
enum { PLAIN_MOST = UINT16_MAX / 2, WINDOW_MOST = INT32_MAX / 4 };
enum { VECTOR_MOST = INT32_MAX / 2 - GPU_VECTOR_THREADS, SHARED_MOST = 48 << 10 };

typedef struct launch {
    const void *kernel;
    dim3 grid, block;
    size_t shared;      /* bytes of dynamic shared memory */
    int32_t q_units;    /* as kernels' parameters have it */
    int32_t slab;       /* rows of one z of the grid */
    void *arguments[3]; /* of the kernel, some in what follows */
    gpu_plain_call plain;
    gpu_window_call window;
    gpu_vector_call vector;
    int32_t staged;
} launch;

/* What a call looks like: everything that more than one kernel asks. */
typedef struct shape {
    int64_t rows;       /* tokens of all batch rows */
    int64_t pairs_each; /* pairs of a multiprocessor */
    int32_t size;       /* bytes of an element */
    int32_t pairing;    /* GPU_ */
    int32_t set;        /* of frequencies that every token takes; negative: the device must look */
    int tokens_in_line; /* batch rows of q and k follow each other as tokens do */
    int ids_in_line;    /* batch rows of ids follow each other, or there is one batch row */
    int one_position;   /* a token has one, its index or an id of a dense list, plus an offset */
    int near;           /* 32 bits hold strides in bytes from a thread's first head to its last */
} shape;

static shape shape_of(const gpu_bound *bound, const rope_call *call);
/* Each plans the launch of its kernels, or gives 0 where they do not fit the call. */
static int plan_plain(const gpu_bound *bound, const rope_call *call, const shape *s, launch *l);
static int plan_window(const gpu_bound *bound, const rope_call *call, const shape *s, launch *l);
static int plan_vector(const gpu_bound *bound, const rope_call *call, const shape *s, launch *l);
static void plan_generic(const gpu_bound *bound, const rope_call *call, const shape *s, launch *l);

gpuError_t gpu_rope_launch(const gpu_bound *bound, const rope_call *call, int32_t early,
                           void *stream) {
    const shape s = shape_of(bound, call);
    launch l;
    l.shared = 0;
    if (bound->geometry == GPU_GENERIC ||
        (!plan_plain(bound, call, &s, &l) && !plan_window(bound, call, &s, &l) &&
         !plan_vector(bound, call, &s, &l)))
        plan_generic(bound, call, &s, &l);
    return gpu_launch_kernel(l.kernel, l.grid, l.block, l.arguments, l.shared, stream, early);
}

/* -- for all of them -- */

static int64_t ceiling(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static int64_t at_most(int64_t n, int64_t most) {
    return n < most ? n : most;
}

static int32_t size_of(const rope_problem *p) {
    return p->dtype == ROPE_F64 ? 8 : p->dtype == ROPE_F32 ? 4 : 2;
}

/* Elements of a thread's vector and heads of a thread, as gpu_shape of fragment.h has them. */
static int32_t vector_of(int32_t size, int32_t geometry) {
    return (size == 2 && geometry != GPU_NARROW) || (size == 4 && geometry == GPU_WIDE) ? 4 : 2;
}

static int32_t heads_of(int32_t size, int32_t geometry) {
    if (geometry == GPU_DEEP)
        return 4;
    return geometry == GPU_NARROW || (geometry == GPU_WIDE && size == 2) ? 2 : 1;
}

static int32_t pairing_of(const rope_problem *p) {
    if (p->pairing_in == p->pairing_out)
        return p->pairing_in == ROPE_PAIRING_INTERLEAVED ? GPU_INTERLEAVED : GPU_HALF_SPLIT;
    return p->pairing_out == ROPE_PAIRING_INTERLEAVED ? GPU_TO_INTERLEAVED : GPU_TO_HALF_SPLIT;
}

static int32_t set_of(const rope_problem *p, const rope_position_map *map) {
    if (p->frequency_sets < 2)
        return 0;
    if (map->lengths || map->offsets || map->cu_seqlens)
        return -1;
    return rope_sum(map->tokens * map->shard_size, map->offset) > p->long_from;
}

/* From a token to the next; strides of dimensions with one entry count nothing. */
static int64_t token_stride(const rope_call *call, const int64_t stride[4]) {
    return call->tokens > 1 ? stride[1] : call->batch > 1 ? stride[0] : 0;
}

static int is_near(const rope_call *call, const int64_t stride[4], int32_t size) {
    const int64_t most = INT32_MAX / (GPU_HEADS_MOST - 1) / size,
                  token = token_stride(call, stride);
    return token <= most && token >= -most && stride[2] <= most && stride[2] >= -most;
}

static shape shape_of(const gpu_bound *bound, const rope_call *call) {
    const rope_problem *p = &bound->problem;
    const rope_position_map *map = &call->position;
    const int64_t heads = call->tensor[0].heads + call->tensor[1].heads;
    shape s = {.rows = call->batch * call->tokens,
               .size = size_of(p),
               .pairing = pairing_of(p),
               .set = set_of(p, map),
               .tokens_in_line = 1,
               .near = 1};
    s.pairs_each = s.rows * heads * p->pairs / bound->on.multiprocessors;
    s.ids_in_line = call->batch == 1 || (map->ids && map->id_stride[1] == call->tokens);
    s.one_position = !map->cu_seqlens && !map->offsets && s.set >= 0 &&
                     (!map->ids || call->tokens == 1 || map->id_stride[2] == 1);
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (!o->heads)
            continue;
        s.near &= is_near(call, o->in_stride, s.size) && is_near(call, o->out_stride, s.size);
        if (call->batch > 1 && call->tokens > 1)
            s.tokens_in_line &= o->in_stride[0] == call->tokens * o->in_stride[1] &&
                                o->out_stride[0] == call->tokens * o->out_stride[1];
    }
    return s;
}

/* Strides of dimensions with one entry are never used. */
static uint64_t strides_used(const rope_call *call, const int64_t stride[4], int64_t heads) {
    return (uint64_t)((call->batch > 1 ? stride[0] : 0) | (call->tokens > 1 ? stride[1] : 0) |
                      (heads > 1 ? stride[2] : 0));
}

/* Whether every vector of `vector` elements that a head has lies at a multiple of its size. */
static int is_aligned(const rope_problem *p, const rope_call *call, int32_t vector) {
    uint64_t elements = (uint64_t)p->pairs, bytes = 0;
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (!o->heads)
            continue;
        if (o->in_stride[3] != 1 || o->out_stride[3] != 1)
            return 0;
        elements |= (uint64_t)p->rotary_offset[t];
        elements |= strides_used(call, o->in_stride, o->heads);
        elements |= strides_used(call, o->out_stride, o->heads);
        if (o->in != o->out)
            elements |= (uint64_t)p->head_dim[t];
        bytes |= (uintptr_t)o->in | (uintptr_t)o->out;
    }
    return elements % (uint64_t)vector == 0 && bytes % (uint64_t)(vector * size_of(p)) == 0;
}

/* q or k with near strides. */
static gpu_operand operand_of(const rope_problem *p, const rope_call *call, int t) {
    const rope_operand *o = &call->tensor[t];
    const int64_t size = size_of(p), offset = p->rotary_offset[t] * size;
    return (gpu_operand){
        .in = (const char *)o->in + offset,
        .out = (char *)o->out + offset,
        .in_token = (int32_t)(token_stride(call, o->in_stride) * size),
        .in_head = (int32_t)(o->in_stride[2] * size),
        .out_token = (int32_t)(token_stride(call, o->out_stride) * size),
        .out_head = (int32_t)(o->out_stride[2] * size),
    };
}

/* Flags that plain and window kernels share. */
static int32_t flags_of(const gpu_bound *bound, const rope_call *call) {
    return (call->position.ids && call->position.wide ? GPU_CALL_WIDE_IDS : 0) |
           (bound->problem.direction != ROPE_FORWARD ? GPU_CALL_NEGATIVE : 0) |
           (bound->on.early ? GPU_CALL_EARLY : 0);
}

/* Units of a block that has one tensor: as many as leave at most an eighth of the threads idle. */
static uint32_t units_apart(int64_t q, int64_t k, uint32_t most) {
    for (uint32_t units = most; units > 1; units--)
        if (8 * (ceiling(q, units) + ceiling(k, units)) * units <= 9 * (q + k))
            return units;
    return 1;
}

/* Units of a block that may have both: the fewest blocks, filled evenly. */
static uint32_t units_together(int64_t all, uint32_t most) {
    return (uint32_t)ceiling(all, ceiling(all, most));
}

/* Rows of a block that has room for so many. */
static uint32_t rows_of_block(uint32_t room, int64_t rows) {
    const uint32_t most = room > GPU_BLOCK_Z_MOST ? GPU_BLOCK_Z_MOST : room ? room : 1;
    return (uint32_t)at_most(rows, most);
}

/*
 * Grid and block of a plain or window kernel: blocks of units of one tensor along x, of rows along
 * y and z. z takes batch rows, or where all are in line what y cannot. 0 where they are too many.
 */
static int lay_out_rows(const gpu_bound *bound, const rope_call *call, int32_t geometry,
                        int in_line, launch *l) {
    const rope_problem *p = &bound->problem;
    const int32_t size = size_of(p);
    const int64_t each = heads_of(size, geometry);
    const int64_t rows = in_line ? call->batch * call->tokens : call->tokens;
    const uint32_t lanes = (uint32_t)(p->pairs / vector_of(size, geometry));
    const uint32_t most = GPU_UNITS_THREADS / lanes;
    int64_t q = ceiling(call->tensor[0].heads, each), k = ceiling(call->tensor[1].heads, each);
    const uint32_t units = units_apart(q, k, most ? most : 1);
    const uint32_t room = GPU_THREADS(geometry, size, bound->on.early) / (lanes * units);
    q = ceiling(q, units) * units;
    l->block = (dim3){lanes, units, rows_of_block(room, rows)};
    const int64_t blocks = ceiling(rows, l->block.z);
    const int64_t z = in_line ? ceiling(blocks, GPU_GRID_YZ_MOST) : call->batch;
    const int64_t y = in_line ? ceiling(blocks, z) : blocks;
    if (y > GPU_GRID_YZ_MOST || z > GPU_GRID_YZ_MOST)
        return 0;
    l->grid = (dim3){(uint32_t)ceiling(q + k, units), (uint32_t)y, (uint32_t)z};
    l->q_units = (int32_t)q;
    l->slab = (int32_t)(in_line ? y * l->block.z : rows);
    return 1;
}

/* -- plain -- */

const char *gpu_plain_declines(const rope_problem *p) {
    const char *declined = gpu_window_declines(p);
    if (declined)
        return declined;
    if (p->angle_mode != ROPE_ANGLE_EXACT)
        return "declined: angle_mode is table";
    if (p->arithmetic != ROPE_ARITHMETIC_FP32)
        return "declined: arithmetic is model_dtype";
    return p->pairing_in == p->pairing_out ? NULL : "declined: pairing_in is not pairing_out";
}

static int is_plain(const gpu_bound *bound, const rope_call *call, const shape *s) {
    const rope_problem *p = &bound->problem;
    if (!bound->plain || !s->one_position || !s->near || !s->tokens_in_line ||
        call->batch > INT32_MAX / 2 / call->tokens ||
        (call->position.ids && !s->ids_in_line && call->position.id_stride[1] != 0))
        return 0;
    for (int t = 0; t < 2; t++) {
        const rope_operand *o = &call->tensor[t];
        if (o->heads > PLAIN_MOST ||
            (o->heads && o->in != o->out && p->head_dim[t] != 2 * p->pairs))
            return 0;
    }
    return 1;
}

static int is_single_head(const rope_call *call) {
    return call->tensor[0].heads + call->tensor[1].heads == 1;
}

static int32_t plain_geometry(const gpu_bound *bound, const rope_call *call, const shape *s) {
    if (bound->geometry != GPU_BY_SIZE)
        return bound->geometry;
    if (is_single_head(call))
        return GPU_SINGLE_HEAD;
    return s->pairs_each <= GPU_NARROW_PAIRS(s->size) ? GPU_NARROW
           : s->pairs_each <= GPU_DEEP_PAIRS          ? GPU_DEEP
                                                      : GPU_WIDE;
}

/* The largest number from least to most that divides a and b, which 32 bits hold; else 1. */
static uint32_t divisor(int64_t whole_a, int64_t whole_b, uint32_t least, uint32_t most) {
    const uint32_t a = (uint32_t)whole_a, b = (uint32_t)whole_b;
    for (uint32_t d = most; d > 1 && d >= least; d--)
        if (a % d == 0 && b % d == 0)
            return d;
    return 1;
}

/* Blocks without a thread too many; 0 where there are none, or only small ones. */
static int lay_out_whole(const gpu_bound *bound, const rope_call *call, const shape *s,
                         int32_t geometry, launch *l) {
    const int64_t each = heads_of(s->size, geometry);
    const int64_t q = call->tensor[0].heads / each, k = call->tensor[1].heads / each;
    const uint32_t lanes = (uint32_t)(bound->problem.pairs / vector_of(s->size, geometry));
    if (!s->ids_in_line || q * each != call->tensor[0].heads || k * each != call->tensor[1].heads ||
        (geometry == GPU_SINGLE_HEAD && call->position.ids))
        return 0;
    const uint32_t units = divisor(q, k, 1, GPU_WHOLE_THREADS(geometry, s->size) / lanes);
    const uint32_t room = GPU_THREADS(geometry, s->size, bound->on.early) / (lanes * units);
    const uint32_t wanted = rows_of_block(room, s->rows);
    l->block = (dim3){lanes, units, divisor(s->rows, 0, (wanted + 1) / 2, wanted)};
    const int64_t blocks = s->rows / l->block.z;
    l->grid = (dim3){(uint32_t)((q + k) / units), (uint32_t)blocks, 1};
    l->q_units = (int32_t)q;
    l->slab = 0;
    return blocks <= GPU_GRID_YZ_MOST && 2 * l->block.z >= wanted;
}

static void fill_plain(const gpu_bound *bound, const rope_call *call, const shape *s,
                       int32_t geometry, launch *l) {
    const rope_problem *p = &bound->problem;
    const int first = geometry == GPU_SINGLE_HEAD && !call->tensor[0].heads; /* k in q's place */
    const rope_frequency_set *set = &p->set[s->set];
    /* Every block has a multiprocessor of its own, and room is left for the next launch's. */
    const int small = (int64_t)l->grid.x * l->grid.y * l->grid.z <= bound->on.multiprocessors;
    l->plain = (gpu_plain_call){
        .turns = set->turns,
        .ids = call->position.ids,
        .offset = call->position.offset,
        .rows = (int32_t)s->rows,
        .slab = l->slab,
        .restart = s->ids_in_line ? 0 : l->slab,
        .factor = (float)set->attention_factor,
        .q_units = (uint16_t)l->q_units,
        .flags =
            (uint16_t)(flags_of(bound, call) | (bound->on.early && small ? GPU_CALL_AT_ONCE : 0)),
    };
    for (int i = 0; i < 2; i++) {
        const int t = i ^ first;
        l->plain.heads[i] = (uint16_t)call->tensor[t].heads;
        if (call->tensor[t].heads)
            l->plain.operand[i] = operand_of(p, call, t);
    }
}

static int plan_plain_as(const gpu_bound *bound, const rope_call *call, const shape *s,
                         int32_t geometry, launch *l) {
    const rope_problem *p = &bound->problem;
    const int32_t vector = vector_of(s->size, geometry);
    const void *const(*kernels)[2] = bound->kernels->plain[geometry][s->pairing];
    const int early = bound->on.early != 0;
    const void *known = p->pairs == 32 ? kernels[GPU_CHECKED_32][early] : NULL;
    const void *checked = known ? known : kernels[GPU_CHECKED][early];
    const int starts = !early || geometry != GPU_SINGLE_HEAD;
    if (!is_aligned(p, call, vector) || p->pairs / vector > GPU_PLAIN_THREADS ||
        (geometry == GPU_SINGLE_HEAD && !is_single_head(call)))
        return 0;
    if (kernels[GPU_WHOLE][early] && starts && lay_out_whole(bound, call, s, geometry, l))
        l->kernel = kernels[GPU_WHOLE][early];
    else if (checked && lay_out_rows(bound, call, geometry, s->ids_in_line, l))
        l->kernel = checked;
    else
        return 0;
    fill_plain(bound, call, s, geometry, l);
    l->arguments[0] = &l->plain;
    return 1;
}

static int plan_plain(const gpu_bound *bound, const rope_call *call, const shape *s, launch *l) {
    if (!is_plain(bound, call, s))
        return 0;
    for (int32_t geometry = plain_geometry(bound, call, s); geometry >= 0; geometry--)
        if (plan_plain_as(bound, call, s, geometry, l))
            return 1;
    return 0;
}

/* -- window -- */

static const char *declines_table(const rope_problem *p) {
    if (p->table_width != ROPE_TABLE_HALF)
        return "declined: table_width is full";
    if (p->direction == ROPE_INVERSE)
        return "declined: angle_mode is table and direction is inverse";
    return p->table_dtype == ROPE_F32 || p->table_dtype == p->dtype
               ? NULL
               : "declined: table_dtype is neither f32 nor dtype";
}

const char *gpu_window_declines(const rope_problem *p) {
    if (p->dtype == ROPE_F64)
        return "declined: dtype is f64";
    if (p->axes != 1)
        return "declined: there are several axes";
    if (p->shard != ROPE_SHARD_NONE)
        return "declined: there are shards";
    if (p->xpos_rate)
        return "declined: xpos_scale_base is given";
    if (p->angle_mode == ROPE_ANGLE_F32)
        return "declined: angle_mode is f32";
    return p->angle_mode == ROPE_ANGLE_TABLE ? declines_table(p) : NULL;
}

/* The geometry of a vector or window kernel: the widest, from the wanted one down, that exists and
 * that the call's alignment allows; negative where none does. */
static int32_t vector_geometry(const gpu_bound *bound, const rope_call *call, const shape *s) {
    const rope_problem *p = &bound->problem;
    const int small = s->size < 8 && p->pairs <= 2 * GPU_PLAIN_THREADS &&
                      s->pairs_each <= GPU_NARROW_PAIRS(s->size);
    int32_t geometry = bound->geometry != GPU_BY_SIZE ? bound->geometry
                       : small                        ? GPU_NARROW
                                                      : GPU_WIDE;
    while (geometry >= 0 && !(bound->kernels->vector[geometry][s->pairing] &&
                              is_aligned(p, call, vector_of(s->size, geometry))))
        geometry--;
    return geometry;
}

/* Bytes of an entry of the tables. */
static int64_t entry_of(const rope_problem *p) {
    return p->table_dtype == ROPE_F32 ? 4 : 2;
}

/* Whether rows of the tables begin at a multiple of the widest vector, and 32 bits hold one. */
static int has_table_vectors(const rope_problem *p, const rope_call *call) {
    const int64_t batch = call->table_stride[0] * entry_of(p), row = call->table_stride[1];
    return call->table_stride[2] == 1 && row <= INT32_MAX / 4 && row >= -INT32_MAX / 4 &&
           ((uint64_t)(batch | row * entry_of(p)) | (uintptr_t)call->cos | (uintptr_t)call->sin) %
                   16 ==
               0;
}

/* From the ids of a batch row to those of the next, or from positions. */
static int64_t id_batch_of(const rope_call *call) {
    return call->position.ids ? call->position.id_stride[1] : 0;
}

static int is_window(const gpu_bound *bound, const rope_call *call, const shape *s) {
    const int64_t most = INT32_MAX / 2, step = id_batch_of(call);
    return bound->window && s->one_position && s->near && call->tensor[0].heads <= WINDOW_MOST &&
           call->tensor[1].heads <= WINDOW_MOST && call->batch <= most / call->tokens &&
           step <= most / call->batch && step >= -most / call->batch &&
           (bound->problem.angle_mode != ROPE_ANGLE_TABLE ||
            has_table_vectors(&bound->problem, call));
}

/* q or k; slab: rows of one z where all are in line, else 0. */
static void fill_window_operand(const rope_problem *p, const rope_call *call, int t, int32_t vector,
                                int64_t slab, gpu_window_call *w) {
    const rope_operand *o = &call->tensor[t];
    const int64_t size = size_of(p);
    const int32_t offset = p->rotary_offset[t], rest = p->head_dim[t] - offset - 2 * p->pairs;
    const int copies = o->in != o->out;
    w->operand[t] = operand_of(p, call, t);
    w->heads[t] = (int32_t)o->heads;
    w->in_batch[t] = slab ? slab * w->operand[t].in_token : o->in_stride[0] * size;
    w->out_batch[t] = slab ? slab * w->operand[t].out_token : o->out_stride[0] * size;
    w->before[t] = copies ? offset / vector : 0;
    w->after[t] = copies ? rest / vector : 0;
    if (w->before[t] | w->after[t])
        w->flags |= GPU_CALL_COPIES;
}

static void fill_window(const gpu_bound *bound, const rope_call *call, const shape *s,
                        int32_t vector, int in_line, launch *l) {
    const rope_problem *p = &bound->problem;
    const rope_frequency_set *set = &p->set[s->set];
    const int ahead = !call->position.ids && s->pairs_each > GPU_TABLE_AHEAD_PAIRS;
    const int model = p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE;
    l->window = (gpu_window_call){
        .turns = set->turns,
        .ids = call->position.ids,
        .offset = call->position.offset,
        .cos = call->cos,
        .sin = call->sin,
        .table_batch = in_line ? 0 : call->table_stride[0] * entry_of(p),
        .table_rows = call->table_rows,
        .position_flag = call->position_flag,
        .table_row = (int32_t)(call->table_stride[1] * entry_of(p)),
        .rows = (int32_t)s->rows,
        .slab = l->slab,
        .id_batch = in_line ? l->slab : (int32_t)id_batch_of(call),
        .pairs = p->pairs,
        .q_units = l->q_units,
        .out_of_range = p->out_of_range,
        .flags = flags_of(bound, call) | (model ? GPU_CALL_MODEL_DTYPE : 0) |
                 (ahead ? GPU_CALL_TABLE_AHEAD : 0) |
                 (p->table_dtype == ROPE_F32 ? GPU_CALL_TABLE_F32 : 0),
        .factor = (float)set->attention_factor,
    };
    for (int t = 0; t < 2; t++)
        if (call->tensor[t].heads)
            fill_window_operand(p, call, t, vector, in_line ? l->slab : 0, &l->window);
}

static int plan_window(const gpu_bound *bound, const rope_call *call, const shape *s, launch *l) {
    const rope_problem *p = &bound->problem;
    const int in_line =
        call->batch == 1 || (s->ids_in_line && s->tokens_in_line &&
                             (p->angle_mode != ROPE_ANGLE_TABLE || call->table_stride[0] == 0));
    if (!is_window(bound, call, s))
        return 0;
    const int32_t geometry = vector_geometry(bound, call, s);
    if (geometry < 0)
        return 0;
    const int32_t vector = vector_of(s->size, geometry);
    l->kernel = bound->kernels->window[geometry][s->pairing]
                                      [p->angle_mode == ROPE_ANGLE_TABLE ? GPU_TABLE : GPU_TURNS];
    if (!l->kernel || p->pairs / vector > GPU_PLAIN_THREADS ||
        !lay_out_rows(bound, call, geometry, in_line, l))
        return 0;
    fill_window(bound, call, s, vector, in_line, l);
    l->arguments[0] = &l->window;
    return 1;
}

/* -- vector -- */

const char *gpu_vector_declines(const rope_problem *p) {
    return p->pairs % 2 ? "declined: rotary_dim is no multiple of 4" : NULL;
}

/* Bytes of a token's row of coefficients. */
static size_t row_bytes(const rope_problem *p) {
    int both = p->angle_mode == ROPE_ANGLE_TABLE && p->table_width == ROPE_TABLE_FULL;
    return (size_t)p->pairs * (both ? 4 : 2) * (p->dtype == ROPE_F64 ? 8 : 4);
}

/* Tokens of a thread: several where enough blocks are left and their rows fit. */
static uint32_t tokens_of_thread(const gpu_bound *bound, int64_t blocks, uint32_t slices) {
    uint32_t most = GPU_TOKENS_MOST;
    while (most > 1 && (blocks / most < GPU_BLOCKS_ENOUGH * bound->on.multiprocessors ||
                        most * slices * row_bytes(&bound->problem) > SHARED_MOST))
        most /= 2;
    return most;
}

/* Grid and block; 0 where a head is too wide for a block, or the call too large for a grid. */
static int lay_out_vector(const gpu_bound *bound, const rope_call *call, const shape *s,
                          int32_t geometry, launch *l) {
    const rope_problem *p = &bound->problem;
    const uint32_t lanes = (uint32_t)(p->pairs / vector_of(s->size, geometry));
    const int64_t each = heads_of(s->size, geometry);
    int64_t q = ceiling(call->tensor[0].heads, each), k = ceiling(call->tensor[1].heads, each);
    if (lanes > GPU_PLAIN_THREADS || q > VECTOR_MOST || k > VECTOR_MOST)
        return 0;
    const uint32_t most = GPU_VECTOR_THREADS / lanes;
    const uint32_t units = p->xpos_rate ? units_apart(q, k, most) : units_together(q + k, most);
    const uint32_t room = GPU_THREADS(geometry, s->size, bound->on.early) / (lanes * units);
    const uint32_t slices =
        (uint32_t)at_most(s->rows, at_most(room ? room : 1, GPU_ROWS_MOST / GPU_TOKENS_MOST));
    if (p->xpos_rate)
        q = ceiling(q, units) * units;
    const int64_t x = ceiling(q + k, units);
    uint32_t tokens = 1;
    if (geometry != GPU_NARROW && s->tokens_in_line)
        tokens = tokens_of_thread(bound, x * ceiling(s->rows, slices), slices);
    const int64_t y = ceiling(s->rows, slices * tokens), z = ceiling(y, GPU_GRID_YZ_MOST);
    if (x > GPU_GRID_X_MOST || z > GPU_GRID_YZ_MOST)
        return 0;
    l->block = (dim3){lanes, units, slices};
    l->grid = (dim3){(uint32_t)x, (uint32_t)ceiling(y, z), (uint32_t)z};
    l->q_units = (int32_t)q;
    l->shared = slices * tokens * row_bytes(p);
    l->vector.tokens = (int32_t)tokens;
    return 1;
}

/* q or k. */
static void fill_vector_operand(const rope_problem *p, const rope_call *call, int t, int32_t vector,
                                gpu_vector_call *v) {
    const rope_operand *o = &call->tensor[t];
    const int64_t size = size_of(p), offset = p->rotary_offset[t];
    gpu_operands *to = &v->operands;
    to->heads[t] = (int32_t)o->heads;
    to->in[t] = (const char *)o->in + offset * size;
    to->out[t] = (char *)o->out + offset * size;
    to->in_token[t] = token_stride(call, o->in_stride) * size;
    to->out_token[t] = token_stride(call, o->out_stride) * size;
    to->in_head[t] = o->in_stride[2] * size;
    to->out_head[t] = o->out_stride[2] * size;
    if (!v->in_line) {
        v->in_batch[t] = o->in_stride[0] * size - call->tokens * to->in_token[t];
        v->out_batch[t] = o->out_stride[0] * size - call->tokens * to->out_token[t];
    }
    v->before[t] = (int32_t)offset / vector;
    v->after[t] = (p->head_dim[t] - (int32_t)offset - 2 * p->pairs) / vector;
    v->copies[t] = o->in != o->out && v->before[t] + v->after[t] > 0;
}

static int plan_vector(const gpu_bound *bound, const rope_call *call, const shape *s, launch *l) {
    const rope_problem *p = &bound->problem;
    const int32_t geometry = vector_geometry(bound, call, s);
    if (geometry < 0 || !lay_out_vector(bound, call, s, geometry, l))
        return 0;
    l->vector = (gpu_vector_call){.operands = {.tokens = call->tokens,
                                               .rows = s->rows,
                                               .q_units = l->q_units,
                                               .pairs = p->pairs},
                                  .tokens = l->vector.tokens,
                                  .in_line = s->tokens_in_line};
    for (int t = 0; t < 2; t++)
        if (call->tensor[t].heads)
            fill_vector_operand(p, call, t, vector_of(s->size, geometry), &l->vector);
    l->kernel = bound->kernels->vector[geometry][s->pairing];
    l->arguments[0] = (void *)(uintptr_t)p;
    l->arguments[1] = (void *)(uintptr_t)call;
    l->arguments[2] = &l->vector;
    return 1;
}

/* -- generic -- */

/* Blocks of the generic kernel, which takes a call of any size with any number of them. */
#ifndef GPU_GENERIC_X_MOST
#define GPU_GENERIC_X_MOST GPU_GRID_X_MOST
#define GPU_GENERIC_Y_MOST GPU_GRID_YZ_MOST
#endif

/* In place with another pairing: the window is staged, a head at a time. */
static int is_staged(const rope_problem *p, const rope_call *call) {
    int in_place = 0;
    for (int t = 0; t < 2; t++)
        in_place |= call->tensor[t].heads && call->tensor[t].in == call->tensor[t].out;
    return in_place && p->pairing_in != p->pairing_out;
}

static void plan_generic(const gpu_bound *bound, const rope_call *call, const shape *s, launch *l) {
    const rope_problem *p = &bound->problem;
    const int64_t q = call->tensor[0].heads, k = call->tensor[1].heads, heads = q > k ? q : k;
    const int64_t whole = ceiling(p->pairs, GPU_GENERIC_LANES) * GPU_GENERIC_LANES;
    const uint32_t lanes = (uint32_t)at_most(whole, GPU_GENERIC_THREADS);
    l->staged = is_staged(p, call);
    const int one_head = l->staged || heads < 2;
    const uint32_t rows = one_head ? 1 : (uint32_t)at_most(heads, GPU_GENERIC_THREADS / lanes);
    l->kernel = bound->kernels->generic;
    l->block = (dim3){lanes, rows, 1};
    l->grid = (dim3){(uint32_t)at_most(s->rows, GPU_GENERIC_X_MOST),
                     (uint32_t)at_most(ceiling(heads, rows), GPU_GENERIC_Y_MOST), 1};
    l->shared = l->staged ? 2 * (size_t)p->pairs * (size_t)s->size : 0;
    l->arguments[0] = (void *)(uintptr_t)p;
    l->arguments[1] = (void *)(uintptr_t)call;
    l->arguments[2] = &l->staged;
}
