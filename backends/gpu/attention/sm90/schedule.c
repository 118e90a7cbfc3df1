/* The order of tiles. */
#include "backends/gpu/attention/sm90/call.h"

#include "backends/gpu/geometry.h"
#include "common/math/attention.h"

#include <float.h>

/* Units whose tiles run side by side, the longest ones first: as many as have so many bytes of keys
 * and values, which stay in the L2, but some at least or as many as have so many tiles, and not so
 * many that short tiles follow long ones late. */
enum { GROUP = 16, GROUP_TILES = 4096, LARGE_GROUP = 32, GROUP_BYTES = 40 << 20 };

int32_t sm90_pack_of(int64_t shares) {
    return shares <= 64 && (shares & (shares - 1)) == 0 ? __builtin_ctz((unsigned)shares) : 0;
}

/* Units that run side by side: an equal part of all. */
static int64_t group_of(const rope_attention_problem *p, const rope_attention_call *call,
                        const sm90_schedule *s) {
    const int64_t each = 2 * (p->head_dim + p->v_head_dim) * call->k_tokens,
                  fit = each > 0 ? GROUP_BYTES / each * (s->shares.by >> s->pack) : s->units,
                  least = gpu_at_most(gpu_divide_up(GROUP_TILES, s->each > 0 ? s->each : 1), GROUP),
                  most = fit < least ? least : gpu_at_most(fit, LARGE_GROUP),
                  parts = gpu_divide_up(s->units, most);
    return parts > 1 ? gpu_divide_up(s->units, parts) : s->units;
}

int sm90_count_tiles(const rope_attention_call *call, int32_t tile, sm90_schedule *s) {
    const int64_t heads = call->rope.tensor[0].heads, sequences = rope_attention_sequences(call);
    const int packed = call->rope.position.cu_seqlens != NULL;
    const int64_t rows = call->rope.tokens << s->pack,
                  each = packed ? rows / tile + sequences : gpu_divide_up(rows, tile),
                  units = (heads >> s->pack) * (packed ? 1 : sequences);
    if (units < 1 || each > INT32_MAX / 2 / units)
        return 0;
    s->each = (int32_t)each;
    s->heads = sm90_divisor_of(heads >> s->pack);
    s->units = (int32_t)units;
    s->tiles = (int32_t)(each * units);
    return 1;
}

static int32_t near(int64_t n) {
    return n < SM90_FAR ? (int32_t)n : SM90_FAR;
}

sm90_mask sm90_mask_of(const rope_attention_problem *p) {
    return (sm90_mask){near(p->window - 1), p->mask == ROPE_MASK_CAUSAL ? 0 : near(p->window_right),
                       near(p->chunk)};
}

sm90_rotation sm90_rotation_of(const rope_problem *r, const rope_attention_call *call, int tensor,
                               void *angles) {
    return (sm90_rotation){.pairs = r->pairs,
                           .from = r->rotary_offset[tensor],
                           .row_step = sm90_has_rows(call) ? (int32_t)call->rope.tokens : 0,
                           .angles = angles};
}

sm90_schedule sm90_schedule_of(const rope_attention_problem *p, const rope_attention_call *call,
                               int tall, int32_t page, const int32_t *failed,
                               const gpu_sm90_memory *memory, int splits) {
    const int64_t shares = call->rope.tensor[0].heads / call->k.heads;
    sm90_schedule s = {.shares = sm90_divisor_of(shares),
                       .pack = sm90_pack_of(shares),
                       .tokens = sm90_depends(call) || failed ? -1 : (int32_t)call->rope.tokens,
                       .k_tokens = (int32_t)call->k_tokens,
                       .page = page,
                       .page_size = sm90_divisor_of(page ? p->page_size : 1),
                       .mask = sm90_mask_of(p),
                       .unit = p->soft_cap > 0 ? 1 : 1.44269504f * p->scale,
                       .has_sinks = p->sink_dtype != 0,
                       .simple = !p->sink_dtype && !call->lse && near(p->chunk) == SM90_FAR,
                       .splits = splits,
                       .tickets = (uint32_t *)memory->tickets + !!tall,
                       .lse = call->lse};
    if (gpu_sm90_rotates(p, call))
        s.rotation = sm90_rotation_of(&p->rope, call, 0, memory->angles);
    s.rotation.out = memory->rotated.out;
    for (int i = 0; i < 3; i++)
        s.rotation.out_stride[i] = memory->rotated.out_stride[i];
    s.lowest = -FLT_MAX / (s.unit > 0.5f ? 2 * s.unit : 1);
    for (int i = 0; i < 3; i++)
        s.lse_stride[i] = call->lse_stride[i];
    (void)sm90_count_tiles(call, tall ? SM90_TALL_ROWS : SM90_ROWS,
                           &s); /* as gpu_sm90_fits() has seen */
    const int64_t group = group_of(p, call, &s), last = s.units % group;
    s.group = sm90_divisor_of(group);
    s.last = sm90_divisor_of(last > 0 ? last : group);
    s.chunk = sm90_divisor_of(group * s.each);
    return s;
}
