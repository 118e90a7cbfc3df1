#include "bench/append/check.h"

#include "bench/append/separate.h"
#include "bench/append/workload.h"
#include "bench/output/message.h"
#include "bench/support/dtype.h"

#include <math.h>
#include <string.h>

static void state_difference(const append_state *s, int tensor, const workload_array *a,
                             const char *got, const char *steps, int64_t i, check_result *r) {
    const int64_t dims = append_head_dim(s->o, tensor), heads = append_heads(s->o, tensor);
    r->at.tensor = tensor;
    r->worst = INFINITY;
    r->got = append_decode(a->dtype, got + a->start, i);
    r->value = append_decode(a->dtype, steps + a->start, i);
    r->at.token = i / (dims * heads);
    r->at.head = i / dims % heads;
    r->at.dim = i % dims;
    r->max_error = fabs(r->got - r->value);
}

/* All that an array holds, as nothing else may have been written. Checked are the elements that the
 * call changed; in place, those of its tokens. */
static void compare(const append_state *s, int tensor, const workload_array *a, bool in_place,
                    const char *got, const char *steps, check_result *r) {
    const size_t size = dtype_bytes(a->dtype);
    const int64_t sizes[] = {s->o->batch, s->o->tokens, append_heads(s->o, tensor),
                             append_head_dim(s->o, tensor)};
    r->elements += in_place && a->bytes ? (int64_t)workload_count(sizes, 4) : 0;
    for (size_t i = 0; i < a->bytes / size; i++) {
        const size_t at = a->start + i * size;
        r->elements += !in_place && memcmp(got + at, s->image + at, size) != 0;
        if (memcmp(got + at, steps + at, size) != 0 && r->refused++ == 0)
            state_difference(s, tensor, a, got, steps, (int64_t)i, r);
    }
}

static void compare_all(const append_state *s, const char *got, const char *steps,
                        check_result *r) {
    for (int t = 0; t < APPEND_TENSORS; t++) {
        compare(s, t, &s->out[t], t == APPEND_Q && s->o->in_place, got, steps, r);
        compare(s, t, &s->cache[t], s->desc.k_source == ROPE_SOURCE_CACHE, got, steps, r);
        compare(s, t, &s->scale[t], false, got, steps, r);
    }
}

static bool fetch(workload *w, char **set) {
    *set = staging_host(&w->memory, "results", 1, w->pitch);
    return *set && succeeded(rope_device_copy_out(w->device, *set, w->target, w->pitch),
                             "copy from the device");
}

bool append_check(workload *w, check_result *result) {
    char *got, *steps;
    *result = (check_result){0};
    if (!append_restore(w) || !workload_run(w, 0) || !fetch(w, &got) || !append_restore(w) ||
        !append_run_steps(w) || !fetch(w, &steps))
        return false;
    compare_all(w->append, got, steps, result);
    if (result->elements == 0)
        message("nothing was checked; allowed is batch, tokens and q-heads or k-heads >= 1");
    return result->elements > 0;
}
