#include "backends/cpu/append/kernel.h"
#include "common/math/cache.h"
#include "common/status.h"

#include <stdio.h>

/* A slot beyond the last is at least pages * page_size, which so fits. */
static rope_status fail_place(const rope_append_problem *p, const rope_append_call *call,
                              const rope_site *site, const rope_place *place) {
    const int64_t pages = p->cache == ROPE_CACHE_TABLE ? call->table_pages : 1;
    int64_t end;
    if (place->status == ROPE_PLACE_INDEX && p->ring && place->index < 0)
        return rope_fail(ROPE_ERROR_POSITION_RANGE,
                         "the index in the cache of batch %lld, token %lld is %lld; allowed is >= "
                         "0, or what the ring leaves out",
                         (long long)site->batch, (long long)site->token, (long long)place->index);
    if (__builtin_mul_overflow(pages, p->page_size, &end))
        end = INT64_MAX;
    if (place->status == ROPE_PLACE_INDEX)
        return rope_fail(ROPE_ERROR_POSITION_RANGE,
                         "the index in the cache of batch %lld, token %lld is %lld; allowed is "
                         "0..%lld, for which its sequence has pages",
                         (long long)site->batch, (long long)site->token, (long long)place->index,
                         (long long)end - 1);
    if (p->cache == ROPE_CACHE_SLOTS)
        return rope_fail(ROPE_ERROR_POSITION_RANGE,
                         "slots[%lld, %lld] is %lld; allowed is below 0, or 0..%lld (pages %lld * "
                         "page_size %lld - 1)",
                         (long long)site->batch, (long long)site->token, (long long)place->index,
                         (long long)(call->pages * p->page_size - 1), (long long)call->pages,
                         (long long)p->page_size);
    if (p->cache == ROPE_CACHE_TABLE)
        return rope_fail(
            ROPE_ERROR_POSITION_RANGE,
            "block_table[%lld, %lld] is %lld; allowed is 0..%lld (pages - 1), as batch "
            "%lld, token %lld lies there",
            (long long)site->sequence, (long long)(place->index / p->page_size),
            (long long)place->page, (long long)call->pages - 1, (long long)site->batch,
            (long long)site->token);
    return rope_fail(ROPE_ERROR_POSITION_RANGE,
                     "the page of batch %lld, token %lld is %lld; allowed is 0..%lld (pages - 1)",
                     (long long)site->batch, (long long)site->token, (long long)place->page,
                     (long long)call->pages - 1);
}

/* Says where it is as far as scales of its kind differ. */
static rope_status fail_scale(const char *name, int kind, int64_t page, int64_t slot, int64_t head,
                              float scale) {
    char place[72] = "";
    if (kind >= ROPE_SCALE_TOKEN_HEAD)
        snprintf(place, sizeof place, "[%lld, %lld, %lld]", (long long)page, (long long)slot,
                 (long long)head);
    else if (kind == ROPE_SCALE_HEAD)
        snprintf(place, sizeof place, " of head %lld", (long long)head);
    return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s%s is %g; allowed is > 0 and finite", name, place,
                     (double)scale);
}

rope_status cpu_check_scales(const char *name, int kind, const rope_append_operand *o, int64_t page,
                             int64_t slot) {
    for (int64_t h = 0; h < o->heads && kind; h++) {
        const float scale = o->scale[page * o->scale_stride[0] + slot * o->scale_stride[1] +
                                     h * o->scale_stride[2]];
        if (!(scale > 0 && scale <= 0x1.fffffep+127f))
            return fail_scale(name, kind, page, slot, h, scale);
        if (o->scale_stride[2] == 0)
            break;
    }
    return ROPE_OK;
}

/* Those that are read. */
static rope_status check_scales(const rope_append_problem *p, const rope_append_call *call, int t,
                                int64_t page, int64_t slot) {
    static const char *const names[] = {"q_scale", "k_cache.scale", "v_cache.scale"};
    const rope_append_operand *o = &call->tensor[t];
    const int kind = p->steps[t].scale,
              written = kind == ROPE_SCALE_TOKEN_HEAD_MAX && p->k_source != ROPE_SOURCE_CACHE;
    return written || !o->scale ? ROPE_OK : cpu_check_scales(names[t], kind, o, page, slot);
}

static rope_status check_token(const rope_append_problem *p, const rope_append_call *call,
                               int64_t batch, int64_t index) {
    const rope_site site = rope_site_of(&call->rope.position, batch, index);
    const rope_place place = rope_place_of(p, call, &site);
    rope_status status = check_scales(p, call, ROPE_APPEND_Q, batch, index);
    if (status != ROPE_OK || place.status == ROPE_PLACE_NONE)
        return status;
    if (place.status != ROPE_PLACE_GIVEN)
        return fail_place(p, call, &site, &place);
    status = check_scales(p, call, ROPE_APPEND_K, place.page, place.slot);
    return status == ROPE_OK ? check_scales(p, call, ROPE_APPEND_V, place.page, place.slot)
                             : status;
}

rope_status cpu_append_check(const rope_append_problem *p, const rope_append_call *call) {
    rope_status status = cpu_check_positions(&p->rope, &call->rope);
    for (int64_t b = 0; b < call->rope.batch; b++)
        for (int64_t t = 0; t < call->rope.tokens && status == ROPE_OK; t++)
            status = check_token(p, call, b, t);
    return status;
}
