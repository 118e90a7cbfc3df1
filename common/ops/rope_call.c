#include "common/ops/rope_call.h"

#include "common/abi.h"
#include "common/ops/rope_descriptor.h"
#include "common/ops/view.h"
#include "common/status.h"

#include <string.h>

static const char *const tensor_names[2] = {"q", "k"};

/* What a present tensor reads and writes. */
typedef struct tensor_spans {
    int64_t count[4];
    rope_span in, out;
    int in_place;
} tensor_spans;

static int all_zero(const int64_t *stride, int n) {
    int64_t bits = 0;
    for (int d = 0; d < n; d++)
        bits |= stride[d];
    return bits == 0;
}

/* Strides as given, or contiguous ones where all are 0. Returns 1 when they are contiguous. Those
 * come one by one: a list would be read in pairs right after it was written, and wait for that. */
static int read_strides(const int64_t given[4], int64_t batch, int64_t token, int64_t head,
                        int64_t stride[4]) {
    int zero = all_zero(given, 4);
    stride[0] = zero ? batch : given[0];
    stride[1] = zero ? token : given[1];
    stride[2] = zero ? head : given[2];
    stride[3] = zero ? 1 : given[3];
    return zero || (given[0] == batch && given[1] == token && given[2] == head && given[3] == 1);
}

/* Returns 1 when what is read and what is written are contiguous. */
static int default_strides(const rope_tensor *given, int64_t tokens, int64_t head_dim,
                           rope_operand *operand) {
    const int64_t token = given->heads * head_dim, batch = tokens * token;
    const int same = given->in == given->out && all_zero(given->out_stride, 4);
    const int64_t *out_stride = same ? given->in_stride : given->out_stride;
    int in = read_strides(given->in_stride, batch, token, head_dim, operand->in_stride);
    int out = read_strides(out_stride, batch, token, head_dim, operand->out_stride);
    return in && out;
}

/* The alignment is a power of two. */
static rope_status check_pointer(const char *tensor, const char *field, const void *pointer,
                                 int32_t alignment) {
    const char *dot = tensor[0] ? "." : "";
    if (!pointer)
        return rope_fail(ROPE_ERROR_NULL_POINTER,
                         "%s%s%s is NULL; allowed is any other multiple of %d bytes", tensor, dot,
                         field, alignment);
    if ((uintptr_t)pointer & ((uintptr_t)alignment - 1))
        return rope_fail(ROPE_ERROR_MISALIGNED, "%s%s%s is %p; allowed is a multiple of %d bytes",
                         tensor, dot, field, pointer, alignment);
    return ROPE_OK;
}

static rope_status check_index(const char *field, const void *pointer, int32_t alignment) {
    return pointer ? check_pointer("", field, pointer, alignment) : ROPE_OK;
}

static rope_status check_sizes(const rope_args *args, int64_t heads, int64_t head_dim,
                               const char *name, int64_t *elements) {
    int64_t n;
    if (__builtin_mul_overflow(args->batch, args->tokens, &n) ||
        __builtin_mul_overflow(n, heads, &n) || __builtin_mul_overflow(n, head_dim, elements) ||
        __builtin_mul_overflow(*elements, 8, &n))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "%s.heads %lld * head_dim %lld * tokens %lld * batch %lld overflows; "
                         "allowed is below 2^60 elements",
                         name, (long long)heads, (long long)head_dim, (long long)args->tokens,
                         (long long)args->batch);
    return ROPE_OK;
}

static int place_spans(const rope_operand *operand, int64_t contiguous_bytes, tensor_spans *spans) {
    if (contiguous_bytes)
        return rope_span_place_contiguous(&spans->in, operand->in, contiguous_bytes) &&
               rope_span_place_contiguous(&spans->out, operand->out, contiguous_bytes);
    return rope_span_place(&spans->in, operand->in) && rope_span_place(&spans->out, operand->out);
}

static rope_status check_views(const char *name, const rope_operand *operand,
                               int64_t contiguous_bytes, tensor_spans *spans) {
    if (!place_spans(operand, contiguous_bytes, spans))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "%s.in_stride is [%lld, %lld, %lld, %lld] and out_stride is [%lld, %lld, "
                         "%lld, %lld]; allowed is what keeps both views within 64-bit addresses",
                         name, (long long)operand->in_stride[0], (long long)operand->in_stride[1],
                         (long long)operand->in_stride[2], (long long)operand->in_stride[3],
                         (long long)operand->out_stride[0], (long long)operand->out_stride[1],
                         (long long)operand->out_stride[2], (long long)operand->out_stride[3]);
    if (!contiguous_bytes && rope_span_aliases(&spans->out))
        return rope_fail(ROPE_ERROR_OVERLAP,
                         "%s.out_stride is [%lld, %lld, %lld, %lld] and may give two elements one "
                         "address; allowed is strides that clear the dimensions below them",
                         name, (long long)operand->out_stride[0], (long long)operand->out_stride[1],
                         (long long)operand->out_stride[2], (long long)operand->out_stride[3]);
    spans->in_place = rope_span_equal(&spans->in, &spans->out);
    if (!spans->in_place && !rope_span_disjoint(&spans->in, &spans->out))
        return rope_fail(ROPE_ERROR_OVERLAP,
                         "%s.in is %p and %s.out is %p: they overlap; allowed is equal or disjoint "
                         "views",
                         name, operand->in, name, operand->out);
    return ROPE_OK;
}

static rope_status read_tensor(const rope_problem *problem, const rope_args *args, int which,
                               rope_operand *operand, tensor_spans *spans) {
    const char *name = tensor_names[which];
    const rope_tensor *given = which ? &args->k : &args->q;
    int64_t head_dim = problem->head_dim[which];
    int32_t element = rope_dtype_size(problem->dtype);
    int64_t elements = 0;
    operand->heads = 0;
    if (given->heads < 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s.heads is %lld; allowed is >= 0", name,
                         (long long)given->heads);
    rope_status status = check_sizes(args, given->heads, head_dim, name, &elements);
    if (status != ROPE_OK || given->heads == 0 || args->batch == 0 || args->tokens == 0)
        return status;
    status = check_pointer(name, "in", given->in, element);
    if (status == ROPE_OK)
        status = check_pointer(name, "out", given->out, element);
    if (status != ROPE_OK)
        return status;
    operand->in = given->in;
    operand->out = given->out;
    operand->heads = given->heads;
    int contiguous = default_strides(given, args->tokens, head_dim, operand);
    spans->count[0] = args->batch;
    spans->count[1] = args->tokens;
    spans->count[2] = given->heads;
    spans->count[3] = head_dim;
    spans->in = (rope_span){spans->count, operand->in_stride, element, 0, 0};
    spans->out = (rope_span){spans->count, operand->out_stride, element, 0, 0};
    return check_views(name, operand, contiguous ? elements * element : 0, spans);
}

static rope_status check_cross(const tensor_spans spans[2]) {
    if (!rope_span_disjoint(&spans[0].out, &spans[1].out))
        return rope_fail(
            ROPE_ERROR_OVERLAP,
            "q.out is %#llx and k.out is %#llx: they overlap; allowed is disjoint views",
            (unsigned long long)spans[0].out.low, (unsigned long long)spans[1].out.low);
    for (int i = 0; i < 2; i++)
        if (!spans[1 - i].in_place && !rope_span_disjoint(&spans[i].out, &spans[1 - i].in))
            return rope_fail(
                ROPE_ERROR_OVERLAP,
                "%s.out is %#llx and %s.in is %#llx: they overlap; allowed is disjoint "
                "views",
                tensor_names[i], (unsigned long long)spans[i].out.low, tensor_names[1 - i],
                (unsigned long long)spans[1 - i].in.low);
    return ROPE_OK;
}

static rope_status check_packed(const rope_args *args) {
    if (!args->cu_seqlens && args->sequences != 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "sequences is %lld; allowed is 0 while cu_seqlens is NULL",
                         (long long)args->sequences);
    if (args->cu_seqlens && args->batch > 1)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "batch is %lld; allowed is 0 or 1 with cu_seqlens",
                         (long long)args->batch);
    if (args->sequences < 0 || args->sequences >> 59)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "sequences is %lld; allowed is 0..2^59 - 1",
                         (long long)args->sequences);
    return ROPE_OK;
}

static rope_status check_schemes(const rope_problem *problem, const rope_args *args) {
    if (args->position_ids && problem->shard != ROPE_SHARD_NONE)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "position_ids is given; allowed is NULL where the descriptor has a shard");
    if (problem->shard == ROPE_SHARD_ZIGZAG && !args->cu_seqlens && args->tokens % 2)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "tokens is %lld; allowed is an even number for two zigzag chunks",
                         (long long)args->tokens);
    if (problem->frequency_sets == 2 && args->position_ids && !args->sequence_lengths)
        return rope_fail(ROPE_ERROR_NULL_POINTER,
                         "sequence_lengths is NULL; allowed with position_ids and longrope per "
                         "sequence is a list of lengths");
    return ROPE_OK;
}

/* What the plan and the other fields leave unread. */
static rope_status check_unread(const rope_problem *problem, const rope_args *args) {
    const int64_t *ids = args->position_stride, *table = args->table_stride;
    if (!args->position_ids && !all_zero(ids, 3))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "position_stride is [%lld, %lld, %lld]; allowed is 0 while position_ids "
                         "is NULL",
                         (long long)ids[0], (long long)ids[1], (long long)ids[2]);
    if (args->sequence_lengths && problem->frequency_sets < 2)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "sequence_lengths is given; allowed is NULL unless rope_type is longrope "
                         "and longrope_select per sequence");
    if (problem->angle_mode == ROPE_ANGLE_TABLE)
        return ROPE_OK;
    if (args->cos || args->sin)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "cos is %p and sin is %p; allowed is NULL unless angle_mode is table",
                         args->cos, args->sin);
    if (args->table_rows != 0 || !all_zero(table, 3))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "table_rows is %lld and table_stride is [%lld, %lld, %lld]; allowed is 0 "
                         "unless angle_mode is table",
                         (long long)args->table_rows, (long long)table[0], (long long)table[1],
                         (long long)table[2]);
    return ROPE_OK;
}

/* Ids that the strides reach, and positions of the whole sequence that a shard is part of. */
static rope_status check_reach(const rope_problem *problem, const rope_args *args,
                               const rope_position_map *map) {
    const int64_t *stride = map->id_stride;
    int64_t whole;
    if (__builtin_mul_overflow(args->tokens, (int64_t)problem->shard_size, &whole))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "tokens %lld * shard_size %d overflows; allowed is below 2^63",
                         (long long)args->tokens, problem->shard_size);
    if (!map->ids || args->batch == 0 || args->tokens == 0)
        return ROPE_OK;
    if (all_zero(args->position_stride, 3) && (args->batch * args->tokens) >> 58 == 0)
        return ROPE_OK;
    int64_t count[4] = {problem->axes, args->batch, args->tokens, 1};
    int64_t reach[4] = {stride[0], stride[1], stride[2], 0};
    rope_span span = {.count = count, .stride = reach, .element = map->wide ? 8 : 4};
    if (!rope_span_place(&span, map->ids))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "position_stride is [%lld, %lld, %lld]; allowed is what stays within "
                         "64-bit addresses with axes %d, batch %lld, tokens %lld",
                         (long long)stride[0], (long long)stride[1], (long long)stride[2],
                         problem->axes, (long long)args->batch, (long long)args->tokens);
    return ROPE_OK;
}

static rope_status read_positions(const rope_problem *problem, const rope_args *args,
                                  rope_position_map *map) {
    int32_t width = rope_dtype_size(problem->position_dtype);
    rope_status status = check_packed(args);
    if (status == ROPE_OK)
        status = check_schemes(problem, args);
    if (status == ROPE_OK)
        status = check_index("position_ids", args->position_ids, width);
    if (status == ROPE_OK)
        status = check_index("sequence_offsets", args->sequence_offsets, width);
    if (status == ROPE_OK)
        status = check_index("cu_seqlens", args->cu_seqlens, width);
    if (status == ROPE_OK)
        status = check_index("sequence_lengths", args->sequence_lengths, width);
    if (status == ROPE_OK)
        status = check_index("position_flag", args->position_flag, 4);
    if (status != ROPE_OK)
        return status;
    map->ids = args->position_ids;
    map->offset = args->position_offset;
    map->offsets = args->sequence_offsets;
    map->cu_seqlens = args->cu_seqlens;
    map->lengths = args->sequence_lengths;
    map->sequences = args->sequences;
    map->tokens = args->tokens;
    map->wide = problem->position_dtype == ROPE_I64;
    map->shard = problem->shard;
    map->shard_rank = problem->shard_rank;
    map->shard_size = problem->shard_size;
    const int64_t *given = args->position_stride;
    const int zero = all_zero(given, 3);
    map->id_stride[0] = zero ? args->batch * args->tokens : given[0];
    map->id_stride[1] = zero ? args->tokens : given[1];
    map->id_stride[2] = zero ? 1 : given[2];
    return check_reach(problem, args, map);
}

static rope_status read_table(const rope_problem *problem, const rope_args *args, rope_call *call) {
    int32_t element = rope_dtype_size(problem->table_dtype);
    rope_status status = check_pointer("", "cos", args->cos, element);
    if (status == ROPE_OK)
        status = check_pointer("", "sin", args->sin, element);
    if (status != ROPE_OK)
        return status;
    if (args->table_rows < 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "table_rows is %lld; allowed is >= 0",
                         (long long)args->table_rows);
    int64_t width = problem->table_width == ROPE_TABLE_FULL ? 2 * (int64_t)problem->pairs
                                                            : (int64_t)problem->pairs;
    int64_t contiguous[3] = {0, width, 1};
    const int64_t *stride = all_zero(args->table_stride, 3) ? contiguous : args->table_stride;
    int64_t count[4] = {args->batch, args->table_rows ? args->table_rows : 1, 1, width};
    int64_t reach[4] = {stride[0], stride[1], 0, stride[2]};
    rope_span span = {.count = count, .stride = reach, .element = element};
    if (args->batch > 0 &&
        (!rope_span_place(&span, args->cos) || !rope_span_place(&span, args->sin)))
        return rope_fail(
            ROPE_ERROR_OVERFLOW,
            "table_stride is [%lld, %lld, %lld]; allowed is what stays within 64-bit addresses "
            "with table_rows %lld",
            (long long)stride[0], (long long)stride[1], (long long)stride[2],
            (long long)args->table_rows);
    call->cos = args->cos;
    call->sin = args->sin;
    call->table_rows = args->table_rows;
    memcpy(call->table_stride, stride, sizeof call->table_stride);
    return ROPE_OK;
}

static rope_status read_all(const rope_problem *problem, const rope_args *args, rope_call *call,
                            int *empty) {
    tensor_spans spans[2];
    if (args->batch < 0 || args->tokens < 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "batch is %lld and tokens is %lld; allowed is >= 0",
                         (long long)args->batch, (long long)args->tokens);
    rope_status status = read_tensor(problem, args, 0, &call->tensor[0], &spans[0]);
    if (status == ROPE_OK)
        status = read_tensor(problem, args, 1, &call->tensor[1], &spans[1]);
    if (status != ROPE_OK)
        return status;
    *empty = call->tensor[0].heads == 0 && call->tensor[1].heads == 0;
    if (call->tensor[0].heads && call->tensor[1].heads)
        status = check_cross(spans);
    if (status == ROPE_OK)
        status = check_unread(problem, args);
    if (status == ROPE_OK)
        status = read_positions(problem, args, &call->position);
    if (status == ROPE_OK && !*empty && problem->angle_mode == ROPE_ANGLE_TABLE)
        status = read_table(problem, args, call);
    call->batch = args->batch;
    call->tokens = args->tokens;
    call->position_flag = args->position_flag;
    return status;
}

rope_status rope_call_read(const void *problem, const void *given, void *call, void **stream,
                           int *empty) {
    const rope_args *args = given;
    rope_args full;
    if (!args || args->struct_size != sizeof *args) {
        rope_status status = rope_abi_read(&full, sizeof full, given, "rope_args");
        if (status != ROPE_OK)
            return status;
        args = &full;
    }
    *stream = args->stream;
    return read_all(problem, args, call, empty);
}
