#include "python/csrc/inputs.h"

#include "python/csrc/failure.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

const char *check_device(const tensor *lead, const tensor *t, const char *name) {
    if (!t->handle || (t->device_type == lead->device_type && t->device == lead->device))
        return NULL;
    return fail("%s is on another device than the first tensor; allowed is one device", name);
}

const char *check_index(const tensor *lead, const tensor *t, const char *name) {
    if (t->dtype != ROPE_I32 && t->dtype != ROPE_I64)
        return fail("%s is %s; allowed is int32 or int64", name, tensor_dtype_name(t));
    if (t->dims >= TENSOR_DIMS)
        return fail("%s has %" PRId64 " dimensions; allowed is at most %d", name, t->dims,
                    TENSOR_DIMS - 1);
    return check_device(lead, t, name);
}

const char *check_repeats(const tensor *t, const char *name, const char *use) {
    if (!t->handle || !tensor_repeats(t))
        return NULL;
    return fail("%s repeats one element%s; allowed is a tensor with a stride", name, use);
}

/* Index tensors under the names that Python has for them. */
static const struct {
    size_t offset;
    const char *name;
} indices[INDICES] = {
    {offsetof(inputs, position_ids), "positions"},
    {offsetof(inputs, sequence_offsets), "sequence_offsets"},
    {offsetof(inputs, cu_seqlens), "cu_seqlens"},
    {offsetof(inputs, sequence_lengths), "sequence_lengths"},
    {offsetof(inputs, cache_starts), "cache_starts"},
    {offsetof(inputs, k_position_ids), "k_positions"},
    {offsetof(inputs, k_cu_seqlens), "k_cu_seqlens"},
    {offsetof(inputs, q_lengths), "q_lengths"},
    {offsetof(inputs, k_lengths), "k_lengths"},
};

static const tensor *index_of(const inputs *in, int i) {
    return (const tensor *)((const char *)in + indices[i].offset);
}

/* A list of numbers in a row. */
static const char *check_list(const tensor *t, const char *name, int64_t count) {
    if (!t->handle)
        return NULL;
    if (t->dims != 1 || (t->sizes[0] > 1 && t->strides[0] != 1))
        return fail("%s has %" PRId64 " dimensions or gaps; allowed is one contiguous dimension",
                    name, t->dims);
    if (t->sizes[0] != count)
        return fail("%s has %" PRId64 " entries; allowed is %" PRId64 ", one a sequence", name,
                    t->sizes[0], count);
    return NULL;
}

/* *dtype is the type of all, or 0 where they differ. */
static const char *check_indices(const inputs *in, const tensor *lead, int32_t *dtype) {
    int narrow = 0, wide = 0;
    for (int i = 0; i < INDICES; i++) {
        const tensor *t = index_of(in, i);
        const char *error = t->handle ? check_index(lead, t, indices[i].name) : NULL;
        if (error)
            return error;
        narrow |= t->handle && t->dtype == ROPE_I32;
        wide |= t->handle && t->dtype == ROPE_I64;
    }
    *dtype = !narrow ? ROPE_I64 : !wide ? ROPE_I32 : 0;
    return NULL;
}

static const char *check_tables(const inputs *in, const tensor *lead) {
    const tensor *cos = &in->cos, *sin = &in->sin;
    if (!cos->handle && !sin->handle)
        return NULL;
    if (!cos->handle || !sin->handle)
        return fail("%s is given alone; allowed is cos and sin together",
                    cos->handle ? "cos" : "sin");
    if (cos->dims < 2 || cos->dims > 3)
        return fail("cos has %" PRId64 " dimensions; allowed is [rows, entries] or [batch, rows, "
                    "entries]",
                    cos->dims);
    if (!tensor_same_shape(cos, sin) || cos->torch_dtype != sin->torch_dtype ||
        memcmp(cos->strides, sin->strides, (size_t)cos->dims * sizeof(int64_t)) != 0)
        return fail("cos and sin differ in shape, strides or type; allowed is one kind for both");
    const char *error = check_repeats(cos, "cos", "");
    if (error)
        return error;
    if (cos->dtype != ROPE_F32 && cos->dtype != lead->dtype)
        return fail("cos is %s; allowed is float32 or the type of q, %s", tensor_dtype_name(cos),
                    tensor_dtype_name(lead));
    error = check_device(lead, cos, "cos");
    return error ? error : check_device(lead, sin, "sin");
}

static const char *check_flag(const inputs *in, const tensor *lead) {
    const tensor *flag = &in->position_flag;
    if (!flag->handle)
        return NULL;
    if (flag->dtype != ROPE_I32 || flag->dims > 1 || (flag->dims == 1 && flag->sizes[0] != 1))
        return fail("position_flag is %s of %" PRId64 " dimensions; allowed is one int32",
                    tensor_dtype_name(flag), flag->dims);
    return check_device(lead, flag, "position_flag");
}

const char *shape_of(const tensor *t, char text[128]) {
    size_t used = 0;
    text[0] = 0;
    for (int64_t i = 0; i < t->dims && used < 100; i++)
        used += (size_t)snprintf(text + used, 128 - used, "%s%" PRId64, i ? ", " : "", t->sizes[i]);
    return text;
}

const char *put_positions(const tensor *ids, const char *name, const int64_t extent[3],
                          const void **data, int64_t stride[3]) {
    const int64_t axes = extent[0], batch = extent[1], tokens = extent[2];
    const int64_t leading = axes > 1, middle = ids->dims - leading - 1, last = ids->dims - 1;
    char shape[128];
    if (middle < 0 || middle > 1 || ids->sizes[last] != tokens ||
        (leading && ids->sizes[0] != axes) ||
        (middle && ids->sizes[leading] != batch && ids->sizes[leading] != 1))
        return fail("%s has the shape [%s]; allowed is [%stokens] or [%sbatch, tokens] with "
                    "axes %" PRId64 ", batch %" PRId64 " and tokens %" PRId64,
                    name, shape_of(ids, shape), leading ? "axes, " : "", leading ? "axes, " : "",
                    axes, batch, tokens);
    if (batch == 0 || tokens == 0) /* none to read */
        return NULL;
    *data = tensor_read(ids);
    stride[0] = leading ? ids->strides[0] : 1;
    stride[1] = middle && ids->sizes[leading] > 1 ? ids->strides[leading] : 0;
    stride[2] = tokens > 1 ? ids->strides[last] : 1;
    if (stride[0] == 0 && stride[1] == 0 && stride[2] == 0)
        return fail("%s repeats one position; allowed is a tensor with a stride", name);
    return NULL;
}

static const char *put_tables(const inputs *in, rope_args *args) {
    const tensor *cos = &in->cos;
    if (!cos->handle)
        return fail("cos and sin are not given; allowed with angle_mode table is both");
    if (cos->dims == 3 && cos->sizes[0] != 1 && cos->sizes[0] != args->batch)
        return fail("cos has batch %" PRId64 "; allowed is 1 or %" PRId64, cos->sizes[0],
                    args->batch);
    if (cos->sizes[cos->dims - 2] == 0 && args->batch > 0 && args->tokens > 0)
        return fail("cos has 0 rows; allowed is one for each position");
    args->cos = tensor_read(cos);
    args->sin = tensor_read(&in->sin);
    args->table_rows = cos->sizes[cos->dims - 2];
    args->table_stride[0] = cos->dims == 3 && cos->sizes[0] > 1 ? cos->strides[0] : 0;
    args->table_stride[1] = cos->strides[cos->dims - 2];
    args->table_stride[2] = cos->strides[cos->dims - 1];
    return NULL;
}

/* Without sequences any address will do that is not NULL. */
const char *put_list(const tensor *t, const char *name, int64_t sequences, const void **list) {
    static const int64_t none;
    const char *error = check_list(t, name, sequences);
    const void *data = t->handle && !error ? tensor_read(t) : NULL;
    *list = t->handle && !data ? &none : data;
    return error;
}

static const char *put_sequences(const inputs *in, rope_args *args) {
    const tensor *bounds = &in->cu_seqlens;
    int64_t sequences = args->batch;
    if (bounds->handle) {
        const char *error = check_list(bounds, "cu_seqlens", bounds->dims ? bounds->sizes[0] : 0);
        if (error)
            return error;
        if (bounds->sizes[0] == 0)
            return fail("cu_seqlens has 0 entries; allowed is one more than there are sequences");
        sequences = args->sequences = bounds->sizes[0] - 1;
        args->cu_seqlens = tensor_read(bounds);
    }
    const char *error =
        put_list(&in->sequence_offsets, "sequence_offsets", sequences, &args->sequence_offsets);
    return error ? error
                 : put_list(&in->sequence_lengths, "sequence_lengths", sequences,
                            &args->sequence_lengths);
}

const char *inputs_starts(const inputs *in, const rope_args *args, const void **starts) {
    const tensor *t = &in->cache_starts;
    const char *error =
        check_list(t, "cache_starts", args->cu_seqlens ? args->sequences : args->batch);
    *starts = t->handle ? tensor_read(t) : NULL;
    return error;
}

const char *inputs_check(const inputs *in, const tensor *lead, int32_t *dtype) {
    const char *error = check_indices(in, lead, dtype);
    if (!error)
        error = check_tables(in, lead);
    return error ? error : check_flag(in, lead);
}

const char *inputs_widen(inputs *in, AtenTensorHandle made[INDICES]) {
    const char *error = NULL;
    for (int i = 0; i < INDICES && !error; i++) {
        tensor *t = (tensor *)((char *)in + indices[i].offset), widened = {0};
        made[i] = NULL;
        if (!t->handle || t->dtype == ROPE_I64)
            continue;
        error = fail_as(ROPE_ERROR_OUT_OF_MEMORY, tensor_widen(t, &widened));
        made[i] = widened.handle;
        *t = widened;
    }
    return error;
}

void inputs_release_widened(AtenTensorHandle made[INDICES]) {
    for (int i = 0; i < INDICES; i++)
        if (made[i])
            aoti_torch_delete_tensor_object(made[i]);
}

const char *inputs_put(const inputs *in, const tensor *lead, const rope_desc *desc,
                       rope_args *args) {
    const char *error = NULL;
    args->position_offset = in->position_offset;
    const int64_t extent[3] = {desc->axes > 1 ? desc->axes : 1, args->batch, args->tokens};
    if (in->position_ids.handle)
        error = put_positions(&in->position_ids, "positions", extent, &args->position_ids,
                              args->position_stride);
    if (!error && desc->angle_mode == ROPE_ANGLE_TABLE)
        error = put_tables(in, args);
    if (!error)
        error = put_sequences(in, args);
    if (!error && in->position_flag.handle)
        args->position_flag = tensor_write(&in->position_flag);
    if (!error && !tensor_on_cpu(lead))
        error = fail_as(ROPE_ERROR_DEVICE, tensor_stream(lead, &args->stream));
    return error;
}
