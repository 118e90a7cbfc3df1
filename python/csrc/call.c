#include "python/csrc/call.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char message[512];

static _Thread_local rope_status failure; /* kind of what went wrong last */

#define FAIL(...)                                                                                  \
    (failure = ROPE_ERROR_INVALID_VALUE, snprintf(message, sizeof message, __VA_ARGS__),           \
     (const char *)message)

static const char *because(rope_status status, const char *error) {
    failure = status;
    return error;
}

enum { BATCH, TOKEN, HEAD, DIM };

/* Which dimension of a tensor is batch, token, head and element; -1: none. */
static const int32_t orders[][4] = {
    [LAYOUT_BSHD] = {0, 1, 2, 3},
    [LAYOUT_BHSD] = {0, 2, 1, 3},
    [LAYOUT_SBHD] = {1, 0, 2, 3},
    [LAYOUT_THD] = {-1, 0, 1, 2},
};
static const char *const layout_names[] = {"", "bshd", "bhsd", "sbhd", "thd"};

static int32_t dims_of(int32_t layout) {
    return layout == LAYOUT_THD ? 3 : 4;
}

static int64_t size_along(const tensor *t, int32_t layout, int what) {
    int32_t d = orders[layout][what];
    return d < 0 ? 1 : t->sizes[d];
}

static void put_strides(const tensor *t, int32_t layout, int64_t stride[4]) {
    for (int i = 0; i < 4; i++)
        stride[i] = orders[layout][i] < 0 ? 0 : t->strides[orders[layout][i]];
}

/* ---- checks that do not need the plan ---- */

static const char *check_device(const call *c, const tensor *t, const char *name) {
    if (!t->handle || (t->device_type == c->q.device_type && t->device == c->q.device))
        return NULL;
    return FAIL("%s is on another device than the first tensor; allowed is one device", name);
}

static const char *check_rotated(const tensor *t, const char *name) {
    if (t->dtype < ROPE_F32 || t->dtype > ROPE_F64)
        return FAIL("%s is %s; allowed is float32, float16, bfloat16 or float64", name,
                    tensor_dtype_name(t));
    if (t->dims < dims_of(LAYOUT_THD))
        return FAIL("%s has %" PRId64 " dimensions; allowed is 4, or 3 for layout thd", name,
                    t->dims);
    int64_t head_dim = t->sizes[t->dims - 1];
    if (head_dim < 2 || head_dim > ROPE_MAX_HEAD_DIM)
        return FAIL("%s has head_dim %" PRId64 "; allowed is 2..%d", name, head_dim,
                    ROPE_MAX_HEAD_DIM);
    return NULL;
}

/* Index tensors under the names that Python has for them. */
enum { INDICES = 4 };
static const struct {
    size_t offset;
    const char *name;
} indices[INDICES] = {
    {offsetof(call, position_ids), "positions"},
    {offsetof(call, sequence_offsets), "sequence_offsets"},
    {offsetof(call, cu_seqlens), "cu_seqlens"},
    {offsetof(call, sequence_lengths), "sequence_lengths"},
};

static tensor *index_of(call *c, int i) {
    return (tensor *)((char *)c + indices[i].offset);
}

static const char *check_index(const call *c, const tensor *t, const char *name) {
    if (t->dtype != ROPE_I32 && t->dtype != ROPE_I64)
        return FAIL("%s is %s; allowed is int32 or int64", name, tensor_dtype_name(t));
    if (t->dims >= TENSOR_DIMS)
        return FAIL("%s has %" PRId64 " dimensions; allowed is at most %d", name, t->dims,
                    TENSOR_DIMS - 1);
    return check_device(c, t, name);
}

/* A list of numbers in a row. */
static const char *check_list(const tensor *t, const char *name, int64_t count) {
    if (!t->handle)
        return NULL;
    if (t->dims != 1 || (t->sizes[0] > 1 && t->strides[0] != 1))
        return FAIL("%s has %" PRId64 " dimensions or gaps; allowed is one contiguous dimension",
                    name, t->dims);
    if (t->sizes[0] != count)
        return FAIL("%s has %" PRId64 " entries; allowed is %" PRId64 ", one a sequence", name,
                    t->sizes[0], count);
    return NULL;
}

/* *dtype is the type of all, or 0 where they differ. */
static const char *check_indices(call *c, int32_t *dtype) {
    int narrow = 0, wide = 0;
    for (int i = 0; i < INDICES; i++) {
        const tensor *t = index_of(c, i);
        const char *error = t->handle ? check_index(c, t, indices[i].name) : NULL;
        if (error)
            return error;
        narrow |= t->handle && t->dtype == ROPE_I32;
        wide |= t->handle && t->dtype == ROPE_I64;
    }
    *dtype = !narrow ? ROPE_I64 : !wide ? ROPE_I32 : 0;
    return NULL;
}

static const char *check_pair(const call *c) {
    const tensor *q = &c->q, *k = &c->k;
    const char *error = check_rotated(q, "q");
    if (error || !k->handle)
        return error;
    error = check_rotated(k, "k");
    if (!error && k->torch_dtype != q->torch_dtype)
        error = FAIL("k is %s and q is %s; allowed is one type", tensor_dtype_name(k),
                     tensor_dtype_name(q));
    return error ? error : check_device(c, k, "k");
}

static const char *check_repeats(const call *c, const tensor *t, const char *name) {
    if (!t->handle || !tensor_repeats(t))
        return NULL;
    return FAIL("%s repeats one element%s; allowed is a tensor with a stride", name,
                c->in_place ? " and is written" : "");
}

static const char *check_tables(const call *c) {
    const tensor *cos = &c->cos, *sin = &c->sin;
    if (!cos->handle && !sin->handle)
        return NULL;
    if (!cos->handle || !sin->handle)
        return FAIL("%s is given alone; allowed is cos and sin together",
                    cos->handle ? "cos" : "sin");
    if (cos->dims < 2 || cos->dims > 3)
        return FAIL("cos has %" PRId64 " dimensions; allowed is [rows, entries] or [batch, rows, "
                    "entries]",
                    cos->dims);
    if (!tensor_same_shape(cos, sin) || cos->torch_dtype != sin->torch_dtype ||
        memcmp(cos->strides, sin->strides, (size_t)cos->dims * sizeof(int64_t)) != 0)
        return FAIL("cos and sin differ in shape, strides or type; allowed is one kind for both");
    const char *error = check_repeats(c, cos, "cos");
    if (error)
        return error;
    if (cos->dtype != ROPE_F32 && cos->dtype != c->q.dtype)
        return FAIL("cos is %s; allowed is float32 or the type of q, %s", tensor_dtype_name(cos),
                    tensor_dtype_name(&c->q));
    error = check_device(c, cos, "cos");
    return error ? error : check_device(c, sin, "sin");
}

static const char *check_flag(const call *c) {
    const tensor *flag = &c->position_flag;
    if (!flag->handle)
        return NULL;
    if (flag->dtype != ROPE_I32 || flag->dims > 1 || (flag->dims == 1 && flag->sizes[0] != 1))
        return FAIL("position_flag is %s of %" PRId64 " dimensions; allowed is one int32",
                    tensor_dtype_name(flag), flag->dims);
    return check_device(c, flag, "position_flag");
}

/* ---- the library's call ---- */

static int32_t head_dim(const tensor *t) {
    return t->handle ? (int32_t)t->sizes[t->dims - 1] : 0;
}

static const plan_entry *plan_of(const call *c, int32_t position_dtype, const char **error) {
    const tensor *cos = &c->cos;
    int64_t columns = cos->handle ? cos->sizes[cos->dims - 1] : 0;
    const plan_key key = {
        .text = c->text,
        .length = c->text_length,
        .dtype = c->q.dtype,
        .head_dim = {head_dim(&c->q), head_dim(&c->k)},
        .position_dtype = position_dtype,
        .table_dtype = cos->handle ? cos->dtype : 0,
        .table_columns = columns < INT32_MAX ? (int32_t)columns : INT32_MAX,
        .accelerated = !tensor_on_cpu(&c->q),
        .device = tensor_on_cpu(&c->q) ? 0 : c->q.device,
    };
    return plan_for(&key, error, &failure);
}

static const char *check_shape(const tensor *t, const char *name, int32_t layout,
                               const rope_args *args) {
    if (t->dims != dims_of(layout))
        return FAIL("%s has %" PRId64 " dimensions; allowed is %d, for layout %s", name, t->dims,
                    dims_of(layout), layout_names[layout]);
    int64_t batch = size_along(t, layout, BATCH), tokens = size_along(t, layout, TOKEN);
    if (args && (batch != args->batch || tokens != args->tokens))
        return FAIL("k has batch %" PRId64 " and %" PRId64 " tokens; allowed is that of q, %" PRId64
                    " and %" PRId64,
                    batch, tokens, args->batch, args->tokens);
    return NULL;
}

/* A result, or the tensor itself in place. Copied to the result first: what is slower otherwise,
 * and an element that is all of `in`, as the gradient of a sum. */
static const char *put_tensor(const tensor *in, const tensor *out, int32_t layout,
                              rope_tensor *target) {
    if (in != out && (tensor_repeats(in) || tensor_wants_copy(out))) {
        if (aoti_torch_copy_(out->handle, in->handle, 1))
            return because(ROPE_ERROR_DEVICE, "the tensor could not be copied");
        in = out;
    }
    target->heads = size_along(in, layout, HEAD);
    target->out = tensor_write(out);
    target->in = in == out ? target->out : tensor_read(in);
    put_strides(in, layout, target->in_stride);
    put_strides(out, layout, target->out_stride);
    return NULL;
}

/* The sizes of t, as "2, 5". */
static const char *shape_of(const tensor *t, char text[128]) {
    size_t used = 0;
    text[0] = 0;
    for (int64_t i = 0; i < t->dims && used < 100; i++)
        used += (size_t)snprintf(text + used, 128 - used, "%s%" PRId64, i ? ", " : "", t->sizes[i]);
    return text;
}

/* Positions [axes, batch, tokens]: axes only where there are several, batch only where it differs.
 */
static const char *put_positions(const tensor *ids, const rope_desc *desc, rope_args *args) {
    int64_t axes = desc->axes > 1 ? desc->axes : 1;
    int64_t leading = axes > 1, middle = ids->dims - leading - 1;
    int64_t last = ids->dims - 1;
    char shape[128];
    if (middle < 0 || middle > 1 || ids->sizes[last] != args->tokens ||
        (leading && ids->sizes[0] != axes) ||
        (middle && ids->sizes[leading] != args->batch && ids->sizes[leading] != 1))
        return FAIL("positions has the shape [%s]; allowed is [%stokens] or [%sbatch, tokens] with "
                    "axes %" PRId64 ", batch %" PRId64 " and tokens %" PRId64,
                    shape_of(ids, shape), leading ? "axes, " : "", leading ? "axes, " : "", axes,
                    args->batch, args->tokens);
    if (args->batch == 0 || args->tokens == 0) /* none to read */
        return NULL;
    args->position_ids = tensor_read(ids);
    args->position_stride[0] = leading ? ids->strides[0] : 1;
    args->position_stride[1] = middle && ids->sizes[leading] > 1 ? ids->strides[leading] : 0;
    args->position_stride[2] = args->tokens > 1 ? ids->strides[last] : 1;
    if (args->position_stride[0] == 0 && args->position_stride[1] == 0 &&
        args->position_stride[2] == 0)
        return FAIL("positions repeats one position; allowed is a tensor with a stride");
    return NULL;
}

static const char *put_tables(const call *c, rope_args *args) {
    const tensor *cos = &c->cos;
    if (!cos->handle)
        return FAIL("cos and sin are not given; allowed with angle_mode table is both");
    if (cos->dims == 3 && cos->sizes[0] != 1 && cos->sizes[0] != args->batch)
        return FAIL("cos has batch %" PRId64 "; allowed is 1 or %" PRId64, cos->sizes[0],
                    args->batch);
    if (cos->sizes[cos->dims - 2] == 0 && args->batch > 0 && args->tokens > 0)
        return FAIL("cos has 0 rows; allowed is one for each position");
    args->cos = tensor_read(cos);
    args->sin = tensor_read(&c->sin);
    args->table_rows = cos->sizes[cos->dims - 2];
    args->table_stride[0] = cos->dims == 3 && cos->sizes[0] > 1 ? cos->strides[0] : 0;
    args->table_stride[1] = cos->strides[cos->dims - 2];
    args->table_stride[2] = cos->strides[cos->dims - 1];
    return NULL;
}

/* One number a sequence; without sequences any address will do that is not NULL. */
static const void *read_list(const tensor *t, const rope_args *args) {
    const void *data = t->handle ? tensor_read(t) : NULL;
    return t->handle && !data ? args->cu_seqlens : data;
}

static const char *put_sequences(const call *c, rope_args *args) {
    const tensor *bounds = &c->cu_seqlens;
    int64_t sequences = args->batch;
    if (bounds->handle) {
        const char *error = check_list(bounds, "cu_seqlens", bounds->dims ? bounds->sizes[0] : 0);
        if (error)
            return error;
        if (bounds->sizes[0] == 0)
            return FAIL("cu_seqlens has 0 entries; allowed is one more than there are sequences");
        sequences = args->sequences = bounds->sizes[0] - 1;
        args->cu_seqlens = tensor_read(bounds);
    }
    const char *error = check_list(&c->sequence_offsets, "sequence_offsets", sequences);
    if (!error)
        error = check_list(&c->sequence_lengths, "sequence_lengths", sequences);
    args->sequence_offsets = read_list(&c->sequence_offsets, args);
    args->sequence_lengths = read_list(&c->sequence_lengths, args);
    return error;
}

static const char *put_result(const call *c, const tensor *in, tensor *out, int32_t layout,
                              rope_tensor *target) {
    const char *error = NULL;
    if (!in->handle)
        return NULL;
    if (c->in_place)
        error = check_repeats(c, in, in == &c->k ? "k" : "q");
    else
        error = because(ROPE_ERROR_OUT_OF_MEMORY, tensor_like(in, out));
    return error ? error : put_tensor(in, c->in_place ? in : out, layout, target);
}

static const char *put_results(call *c, const config_text *config, rope_args *args) {
    rope_tensor *first = config->role == ROLE_K && !c->k.handle ? &args->k : &args->q;
    const char *error = put_result(c, &c->q, &c->q_out, config->layout, first);
    return error ? error : put_result(c, &c->k, &c->k_out, config->layout, &args->k);
}

static const char *fill(call *c, const plan_entry *entry, rope_args *args) {
    int32_t layout = entry->config.layout;
    const char *error = check_shape(&c->q, "q", layout, NULL);
    if (error)
        return error;
    args->batch = size_along(&c->q, layout, BATCH);
    args->tokens = size_along(&c->q, layout, TOKEN);
    args->position_offset = c->position_offset;
    if (c->k.handle)
        error = check_shape(&c->k, "k", layout, args);
    if (!error && c->position_ids.handle)
        error = put_positions(&c->position_ids, &entry->config.desc, args);
    if (!error && entry->config.desc.angle_mode == ROPE_ANGLE_TABLE)
        error = put_tables(c, args);
    if (!error)
        error = put_sequences(c, args);
    if (!error && c->position_flag.handle)
        args->position_flag = tensor_write(&c->position_flag);
    if (!error && !tensor_on_cpu(&c->q))
        error = because(ROPE_ERROR_DEVICE, tensor_stream(&c->q, &args->stream));
    return error ? error : put_results(c, &entry->config, args);
}

static const char *run(call *c);

/* The library takes index arrays of one type: of two, all become int64. */
static const char *run_widened(call *c) {
    call wide = *c;
    AtenTensorHandle made[INDICES] = {NULL};
    const char *error = NULL;
    for (int i = 0; i < INDICES && !error; i++) {
        tensor *t = index_of(&wide, i), widened = {0};
        if (!t->handle || t->dtype == ROPE_I64)
            continue;
        error = because(ROPE_ERROR_OUT_OF_MEMORY, tensor_widen(t, &widened));
        made[i] = widened.handle;
        *t = widened;
    }
    if (!error)
        error = run(&wide);
    c->q_out = wide.q_out;
    c->k_out = wide.k_out;
    for (int i = 0; i < INDICES; i++)
        if (made[i])
            aoti_torch_delete_tensor_object(made[i]);
    return error;
}

static const char *run(call *c) {
    int32_t position_dtype = 0;
    const char *error = check_pair(c);
    if (!error)
        error = check_indices(c, &position_dtype);
    if (!error)
        error = check_tables(c);
    if (!error)
        error = check_flag(c);
    if (!error && !position_dtype)
        return run_widened(c);
    const plan_entry *entry = error ? NULL : plan_of(c, position_dtype, &error);
    if (!entry)
        return error;
    rope_args args = ROPE_ARGS_INIT;
    error = fill(c, entry, &args);
    if (!error && (failure = rope_apply(entry->plan, &args)) != ROPE_OK)
        error = rope_last_error();
    return error;
}

static _Thread_local const char *last_error;

const char *call_run(call *c) {
    return last_error = run(c);
}

/* What call_run last returned to this thread, and the rope_status of that. */
ROPE_API const char *ropekit_last_error(rope_status *status) {
    *status = failure;
    return last_error;
}

void call_release_results(const call *c) {
    if (c->q_out.handle)
        aoti_torch_delete_tensor_object(c->q_out.handle);
    if (c->k_out.handle)
        aoti_torch_delete_tensor_object(c->k_out.handle);
}
