#include "python/csrc/norm_weight.h"

#include "python/csrc/failure.h"
#include "python/csrc/inputs.h"

#include <inttypes.h>

const char *check_weight(const tensor *lead, const tensor *t, const char *name) {
    if (t->dtype != ROPE_F32 && t->dtype != lead->dtype)
        return fail("%s is %s; allowed is float32 or %s, the type of what it weighs", name,
                    tensor_dtype_name(t), tensor_dtype_name(lead));
    if (t->dims < 1 || t->dims > 2 || (t->sizes[t->dims - 1] > 1 && t->strides[t->dims - 1] != 1))
        return fail("%s has %" PRId64 " dimensions or gaps; allowed is [elements] or [heads, "
                    "elements] whose elements lie side by side",
                    name, t->dims);
    return check_device(lead, t, name);
}

const char *put_weight(const tensor *t, const char *name, const rope_norm *norm, int64_t heads,
                       int64_t all, rope_norm_weight *target) {
    if (!t->handle)
        return NULL;
    const int64_t dim = norm->dim ? norm->dim : all - norm->offset;
    const int64_t last = t->sizes[t->dims - 1];
    const int whole = norm->scope == ROPE_NORM_TOKEN && t->dims == 1;
    char shape[128];
    if (last != (whole ? heads * dim : dim) || (t->dims == 2 && t->sizes[0] != heads))
        return fail("%s has the shape [%s]; allowed is %s%" PRId64 "] or [%" PRId64 ", %" PRId64
                    "], heads and elements",
                    name, shape_of(t, shape), "[", whole ? heads * dim : dim, heads, dim);
    target->data = tensor_read(t);
    target->head_stride = t->dims == 2 ? t->strides[0] : 0;
    return NULL;
}
