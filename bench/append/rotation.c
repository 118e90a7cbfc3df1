#include "bench/append/rotation.h"

#include "bench/output/message.h"
#include "bench/support/dtype.h"

/* Elements of a head: all that rotate of one of q. */
static int32_t dims(const options *o) {
    return o->desc.rotary_dim ? o->desc.rotary_dim : o->desc.head_dim;
}

/* Heads of a token that a copy of the call's bytes reads; 0 where no number of heads is as large.
 */
static int64_t count_heads(const workload *w, const options *o) {
    const int64_t tokens = append_count(o->batch, o->tokens, 1, 1);
    const size_t each = (size_t)tokens * (size_t)dims(o) * dtype_bytes(o->desc.dtype);
    const bool wanted = !append_moves(o) && o->appends.rotation != ROPE_ROTATION_OFF &&
                        tokens <= APPEND_ROTATION_TOKENS;
    return wanted && each && w->floor_bytes % each == 0 ? (int64_t)(w->floor_bytes / each) : 0;
}

/* By the kernel that rope_apply chooses, whichever runs the call. */
static rope_desc rotation_desc(const append_state *s) {
    rope_desc d = s->desc.rope;
    d.head_dim = dims(s->o);
    d.rotary_dim = d.rotary_offset = d.k_head_dim = d.k_rotary_offset = 0;
    d.kernel = NULL;
    return d;
}

/* Heads of k lie behind those of q. */
static rope_args rotation_on(const workload *w, int64_t heads, int64_t set) {
    const options *o = w->append->o;
    const size_t start = (size_t)set * w->pitch;
    const int64_t of_q = o->q_heads < heads ? o->q_heads : heads;
    const size_t q_bytes =
        (size_t)append_count(o->batch, o->tokens, of_q, dims(o)) * dtype_bytes(o->desc.dtype);
    const char *in = (const char *)w->source + start;
    char *out = (char *)w->target + start;
    rope_args a = w->append->args.rope;
    rope_tensor *const tensors[] = {&a.q, &a.k};
    for (int i = 0; i < 2; i++) {
        const int64_t count = i ? heads - of_q : of_q;
        const size_t at = i ? q_bytes : 0;
        *tensors[i] = (rope_tensor){0};
        if (count == 0)
            continue;
        *tensors[i] = (rope_tensor){.heads = count, .in = in + at, .out = out + at};
        workload_strides(o, count, dims(o), tensors[i]->in_stride);
        workload_strides(o, count, dims(o), tensors[i]->out_stride);
    }
    return a;
}

bool append_add_rotation(workload *w) {
    workload_call *c = &w->rotation;
    const int64_t heads = count_heads(w, w->append->o);
    const rope_desc desc = rotation_desc(w->append);
    if (heads == 0)
        return true;
    *c = (workload_call){.name = "rotation of as many bytes", .size = sizeof(rope_args)};
    c->sets = staging_host(&w->memory, "calls", w->set_count, c->size);
    if (!c->sets || !succeeded(rope_plan_create(&desc, &c->plan), c->name))
        return false;
    for (int64_t i = 0; i < w->set_count; i++)
        ((rope_args *)c->sets)[i] = rotation_on(w, heads, i);
    return true;
}
