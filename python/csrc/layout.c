#include "python/csrc/layout.h"

#include "python/csrc/failure.h"
#include "python/csrc/inputs.h"

#include <inttypes.h>

/* Which dimension of a tensor is batch, token, head and element; -1: none. */
static const int32_t orders[][4] = {
    [LAYOUT_BSHD] = {0, 1, 2, 3},
    [LAYOUT_BHSD] = {0, 2, 1, 3},
    [LAYOUT_SBHD] = {1, 0, 2, 3},
    [LAYOUT_THD] = {-1, 0, 1, 2},
};
static const char *const layout_names[] = {"", "bshd", "bhsd", "sbhd", "thd"};

int32_t dims_of(int32_t layout) {
    return layout == LAYOUT_THD ? 3 : 4;
}

int32_t layout_of(int32_t stated, const tensor *t) {
    return stated ? stated : t->dims == dims_of(LAYOUT_THD) ? LAYOUT_THD : LAYOUT_BSHD;
}

int64_t size_along(const tensor *t, int32_t layout, int what) {
    int32_t d = orders[layout][what];
    return d < 0 ? 1 : t->sizes[d];
}

void put_strides(const tensor *t, int32_t layout, int64_t stride[4]) {
    for (int i = 0; i < 4; i++)
        stride[i] = orders[layout][i] < 0 ? 0 : t->strides[orders[layout][i]];
}

const char *check_operand(const tensor *lead, const char *lead_name, const tensor *t,
                          const char *name, int32_t most) {
    if (t->dtype < ROPE_F32 || t->dtype > ROPE_BF16)
        return fail("%s is %s; allowed is float32, float16 or bfloat16", name,
                    tensor_dtype_name(t));
    if (t->dtype != lead->dtype)
        return fail("%s is %s and %s is %s; allowed is one type", name, tensor_dtype_name(t),
                    lead_name, tensor_dtype_name(lead));
    if (t->dims < dims_of(LAYOUT_THD))
        return fail("%s has %" PRId64 " dimensions; allowed is 4, or 3 for layout thd", name,
                    t->dims);
    if (t->sizes[t->dims - 1] < 1 || t->sizes[t->dims - 1] > most)
        return fail("%s has head_dim %" PRId64 "; allowed is 1..%d", name, t->sizes[t->dims - 1],
                    most);
    return check_device(lead, t, name);
}

const char *check_shape(const tensor *t, const char *name, int32_t layout, const rope_args *args,
                        const char *like) {
    if (t->dims != dims_of(layout))
        return fail("%s has %" PRId64 " dimensions; allowed is %d, for layout %s%s", name, t->dims,
                    dims_of(layout), layout_names[layout],
                    t->dims == dims_of(LAYOUT_THD) ? ", or 3 with layout='thd'" : "");
    int64_t batch = size_along(t, layout, BATCH), tokens = size_along(t, layout, TOKEN);
    if (args && (batch != args->batch || tokens != args->tokens))
        return fail("%s has batch %" PRId64 " and %" PRId64 " tokens; allowed is that of %s, "
                    "%" PRId64 " and %" PRId64,
                    name, batch, tokens, like, args->batch, args->tokens);
    return NULL;
}
