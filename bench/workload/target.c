#include "bench/workload/target.h"

#include "bench/output/message.h"
#include "bench/workload/angle_table.h"

#include <stdlib.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static bool set_threads(int64_t threads) {
#ifdef _OPENMP
    if (threads > 0)
        omp_set_num_threads((int)threads);
    else if (omp_get_max_threads() > OPTIONS_THREADS_MOST)
        message("OMP_NUM_THREADS asks for %d threads; allowed is 1..%d", omp_get_max_threads(),
                OPTIONS_THREADS_MOST);
    return omp_get_max_threads() <= OPTIONS_THREADS_MOST;
#else
    if (threads > 1)
        message("--threads is %lld; allowed is 1, as the tool is built without OpenMP",
                (long long)threads);
    return threads <= 1;
#endif
}

int32_t target_threads(void) {
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

bool target_open(target *t, options *o) {
    *t = (target){.info.struct_size = sizeof t->info};
    if (!set_threads(o->threads) ||
        !succeeded(rope_device_open(o->desc.backend, o->desc.device, &t->device), "device"))
        return false;
    if (!succeeded(rope_device_get(t->device, &t->info), "device"))
        return false;
    o->desc.backend = t->info.backend;
    return true;
}

void target_close(target *t) {
    rope_device_close(t->device);
}

bool target_desc(const options *o, rope_desc *desc) {
    *desc = o->desc;
    if (desc->angle_mode != ROPE_ANGLE_TABLE)
        return true;
    angle_rule *rule = malloc(sizeof *rule);
    bool taken = rule && angle_rule_take(desc, rule);
    free(rule);
    return taken;
}

rope_desc target_without_rotation(const rope_desc *d) {
    return (rope_desc){.struct_size = sizeof *d,
                       .dtype = d->dtype,
                       .head_dim = d->head_dim,
                       .k_head_dim = d->k_head_dim,
                       .position_dtype = d->position_dtype,
                       .shard = d->shard,
                       .shard_rank = d->shard_rank,
                       .shard_size = d->shard_size,
                       .launch = d->launch,
                       .backend = d->backend,
                       .device = d->device,
                       .kernel = d->kernel};
}

rope_desc target_transposed(const rope_desc *d) {
    rope_desc back = *d;
    back.direction = d->direction == ROPE_TRANSPOSE ? ROPE_FORWARD : ROPE_TRANSPOSE;
    back.pairing_out = d->pairing_in;
    back.pairing_in = d->pairing_out ? d->pairing_out : d->pairing_in;
    return back;
}

bool target_plan(const options *o, rope_plan **plan) {
    rope_desc desc;
    return target_desc(o, &desc) && succeeded(rope_plan_create(&desc, plan), "plan");
}
