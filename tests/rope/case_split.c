/* A part of a call as a call. */
#include "tests/oracle/oracle.h"
#include "tests/rope/cases.h"

#include <string.h>

const void *case_advance(const void *p, int64_t elements, int64_t size) {
    return p ? (const char *)p + elements * size : NULL;
}

void case_fix_strides(const rope_desc *d, rope_args *a) {
    for (int32_t i = 0; i < 2; i++) {
        int64_t in[4], out[4];
        oracle_strides(d, a, i, in, out);
        memcpy(case_tensor(a, i)->in_stride, in, sizeof in);
        memcpy(case_tensor(a, i)->out_stride, out, sizeof out);
    }
    int64_t *ids = a->position_stride;
    if (a->position_ids && ids[0] == 0 && ids[1] == 0 && ids[2] == 0) {
        ids[0] = a->batch * a->tokens;
        ids[1] = a->tokens;
        ids[2] = 1;
    }
}

rope_args case_batch_rows(const rope_desc *d, const rope_args *whole, int64_t first,
                          int64_t count) {
    rope_args a = *whole;
    int64_t index = d->position_dtype == ROPE_I32 ? 4 : 8, size = oracle_dtype_size(d->dtype);
    int64_t entry = oracle_dtype_size(d->table_dtype ? d->table_dtype : ROPE_F32);
    case_fix_strides(d, &a);
    a.batch = count;
    for (int32_t i = 0; i < 2; i++) {
        rope_tensor *t = case_tensor(&a, i);
        t->in = case_advance(t->in, first * t->in_stride[0], size);
        t->out = (void *)(uintptr_t)case_advance(t->out, first * t->out_stride[0], size);
    }
    a.position_ids = case_advance(a.position_ids, first * a.position_stride[1], index);
    a.sequence_offsets = case_advance(a.sequence_offsets, first, index);
    a.sequence_lengths = case_advance(a.sequence_lengths, first, index);
    a.cos = case_advance(a.cos, first * a.table_stride[0], entry);
    a.sin = case_advance(a.sin, first * a.table_stride[0], entry);
    return a;
}
