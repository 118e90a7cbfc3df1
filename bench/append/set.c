#include "bench/append/set.h"

rope_tensor *append_tensor_of(rope_append_args *a, int tensor) {
    return tensor == APPEND_Q ? &a->rope.q : tensor == APPEND_K ? &a->rope.k : &a->v;
}

void append_set_tensor(const options *o, rope_append_args *a, int tensor, const char *in,
                       char *out) {
    rope_tensor *t = append_tensor_of(a, tensor);
    const int64_t dim = append_head_dim(o, tensor);
    *t = (rope_tensor){.heads = append_heads(o, tensor), .in = in, .out = out};
    if (in)
        workload_strides(o, t->heads, dim, t->in_stride);
    if (out)
        workload_strides(o, t->heads, dim, t->out_stride);
}
