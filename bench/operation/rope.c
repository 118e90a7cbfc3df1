#include "bench/operation/operation.h"
#include "bench/output/message.h"
#include "bench/workload/placement.h"
#include "bench/workload/target.h"

#include <string.h>

rope_args rope_args_on(const workload *w, const rope_args *fixed, char *in, char *out) {
    rope_args a = *fixed;
    rope_tensor *const tensors[] = {&a.q, &a.k};
    for (int t = CHECK_Q; t <= CHECK_K; t++) {
        char *const to = out + w->out[t].start;
        if (shape_heads(w->o, t))
            *tensors[t] = workload_tensor(w->o, t, in ? in + w->in[t].start : to, to);
    }
    return a;
}

bool rope_create(workload *w) {
    const options *o = w->o;
    rope_args fixed = ROPE_ARGS_INIT;
    fixed.batch = o->batch;
    fixed.tokens = o->tokens;
    fixed.position_offset = o->position_offset;
    w->on_device.rope = w->on_host.rope = fixed;
    w->floor_bytes = shape_bytes(o);
    for (int t = CHECK_Q; t <= CHECK_K; t++) {
        w->out[t] = workload_take(&w->out_bytes, o->desc.dtype, shape_elements(o, t));
        if (!o->in_place)
            w->in[t] = workload_take(&w->in_bytes, o->desc.dtype, shape_elements(o, t));
    }
    rope_plan *plan;
    if (!target_plan(o, &plan))
        return false;
    workload_call *c = workload_next(w, "rope_apply", &workload_apply);
    if (!c) {
        rope_plan_destroy(plan);
        return false;
    }
    c->plan = plan;
    w->call_count = 1;
    if (!workload_allocate(w))
        return false;
    if (o->in_place)
        memcpy(w->outputs, w->inputs, w->pitch);
    if (!workload_upload(w) ||
        !placement_create(&w->memory, o, &w->desc, &w->on_host.rope, &w->on_device.rope))
        return false;
    for (int64_t i = 0; i < w->set_count; i++)
        ((rope_args *)c->sets)[i] = rope_args_on(
            w, &w->on_device.rope, workload_set(w, w->source, i), workload_set(w, w->target, i));
    return true;
}
