#include "bench/operation/operation.h"
#include "bench/output/message.h"
#include "bench/workload/target.h"

#include <string.h>

enum { NORM, ROTATION, STORE, STEPS };
static const char *const names[] = {"norm", "rotation", "store"};

static bool takes_step(const options *o, int tensor, int step) {
    const rope_append_part *part = shape_part(o, tensor);
    const bool normal = part->norm.type != 0;
    const bool rotates = tensor != CHECK_V && o->appends.rotation != ROPE_ROTATION_OFF;
    const bool stores = shape_is_cached(o, tensor) || part->factor != 0 || part->scale ||
                        shape_store_dtype(o, tensor) != o->desc.dtype;
    return shape_heads(o, tensor) > 0 && (step == NORM       ? normal
                                          : step == ROTATION ? rotates
                                                             : stores || !(normal || rotates));
}

/* Kernels are those that plans choose, whichever runs the whole. */
static rope_append_desc desc_of(const workload *w, int step) {
    const rope_append_desc *whole = &w->append;
    rope_append_desc d = ROPE_APPEND_DESC_INIT;
    const rope_norm none = {0};
    if (step == NORM) {
        d.q.norm = whole->q.norm;
        d.k.norm = whole->k.norm;
        d.v.norm = whole->v.norm;
        d.v_head_dim = whole->v_head_dim;
    } else {
        d = *whole;
        d.q.norm = d.k.norm = d.v.norm = none;
    }
    d.rope = target_without_rotation(&whole->rope);
    d.rope.kernel = NULL;
    d.rotation = ROPE_ROTATION_OFF;
    return d;
}

/* Tensors go from where their step before left them to where the one behind finds them. */
static void pass_on(const workload *w, int step, const rope_append_args *whole,
                    rope_append_args *a) {
    const rope_tensor *const given[] = {&whole->rope.q, &whole->rope.k, &whole->v};
    rope_tensor *const tensors[] = {&a->rope.q, &a->rope.k, &a->v};
    for (int t = CHECK_Q; t <= CHECK_V; t++) {
        char *const between = (char *)w->scratch + w->between[t].start;
        bool first = true, last = true;
        for (int other = 0; other < STEPS; other++) {
            first = first && !(other < step && takes_step(w->o, t, other));
            last = last && !(other > step && takes_step(w->o, t, other));
        }
        *tensors[t] = (rope_tensor){0};
        if (takes_step(w->o, t, step))
            *tensors[t] = workload_tensor(w->o, t, first ? given[t]->in : between,
                                          last ? given[t]->out : between);
    }
}

static rope_append_args args_of(const workload *w, int step, int64_t set) {
    const rope_append_args whole = ((const rope_append_args *)w->calls[0].sets)[set];
    rope_append_args a = whole;
    pass_on(w, step, &whole, &a);
    if (step == ROTATION)
        return a;
    a.rope.position_offset = 0;
    a.rope.position_ids = a.rope.sequence_offsets = a.rope.sequence_lengths = NULL;
    memset(a.rope.position_stride, 0, sizeof a.rope.position_stride);
    a.rope.cos = a.rope.sin = NULL;
    a.rope.table_rows = 0;
    if (step == STORE) {
        a.q_weight = a.k_weight = a.v_weight = (rope_norm_weight){0};
        if (a.rope.q.heads == 0)
            a.q_scale = (rope_scale){0};
        return a;
    }
    a.q_scale = (rope_scale){0};
    a.k_cache = a.v_cache = (rope_cache){0};
    a.slots = a.block_table = a.cache_starts = NULL;
    a.pages = a.table_pages = 0;
    return a;
}

static bool add_step(workload *w, int step) {
    const bool rotates = step == ROTATION;
    const rope_append_desc desc = desc_of(w, step);
    rope_desc rotation = w->append.rope;
    rotation.kernel = NULL;
    workload_call *c =
        workload_next(w, names[step], rotates ? sizeof(rope_args) : sizeof(rope_append_args));
    if (!c || !succeeded(rotates ? rope_plan_create(&rotation, &c->plan)
                                 : rope_append_plan_create(&desc, &c->plan),
                         c->name))
        return false;
    w->call_count++;
    for (int64_t i = 0; i < w->set_count; i++) {
        const rope_append_args a = args_of(w, step, i);
        if (rotates)
            ((rope_args *)c->sets)[i] = a.rope;
        else
            ((rope_append_args *)c->sets)[i] = a;
    }
    return true;
}

bool append_add_steps(workload *w) {
    bool added = true;
    for (int step = NORM; step < STEPS && added; step++)
        if (takes_step(w->o, CHECK_Q, step) || takes_step(w->o, CHECK_K, step) ||
            takes_step(w->o, CHECK_V, step))
            added = add_step(w, step);
    return added;
}
