/* Which calls may have sequences whose keys are taken in spans, and where sums of these lie. */
#include "backends/gpu/attention/sm90/call.h"

#include "backends/gpu/geometry.h"
#include "common/math/attention.h"

_Static_assert(GPU_SM90_TICKETS == 4 * SM90_TICKETS, "in its room");

/* Most sequences whose spans several blocks take: each has room for those of a GPU. */
enum { SPREAD_SEQUENCES = 4 };

static int32_t pack_of(const rope_attention_call *call) {
    return sm90_pack_of(call->rope.tensor[0].heads / call->k.heads);
}

/* Tiles of a sequence. */
static int64_t tiles_of(const rope_attention_call *call, int64_t queries) {
    const int32_t pack = pack_of(call);
    return gpu_divide_up(queries << pack, SM90_ROWS) * (call->rope.tensor[0].heads >> pack);
}

/* The most spans of a tile by its keys. */
static int64_t spans_of(const rope_attention_problem *p, int64_t keys) {
    return gpu_at_most(gpu_divide_up(keys, sm90_keys_of_tile(p, 0)) / SM90_SPAN_TILES, SM90_SPANS);
}

/* The fewest tiles of a sequence that may have spans: of as many queries as there are, or of those
 * that keys enough have. */
static int64_t fewest_tiles(const rope_attention_problem *p, const rope_attention_call *call) {
    const rope_position_map *q = &call->rope.position, *k = &call->k_position;
    const int64_t least = (2 * SM90_SPAN_TILES - 1) * (int64_t)sm90_keys_of_tile(p, 0) + 1;
    if (!q->cu_seqlens && !call->q_lengths)
        return tiles_of(call, call->rope.tokens);
    return !p->cache && q->cu_seqlens && q->cu_seqlens == k->cu_seqlens && !call->q_lengths &&
                   !call->k_lengths
               ? tiles_of(call, least)
               : tiles_of(call, 1);
}

/* The most spans of a tile of a call, 0 where no sequence has several. */
static int32_t most_of(const rope_attention_problem *p, const rope_attention_call *call,
                       int multiprocessors) {
    const int64_t by_keys = spans_of(p, call->k_tokens),
                  by_tiles = multiprocessors / fewest_tiles(p, call),
                  most = by_keys < by_tiles ? by_keys : by_tiles;
    return sm90_span_kernel_of(p) && most > 1 ? (int32_t)most : 0;
}

int sm90_has_spans(const rope_attention_problem *p, const rope_attention_call *call,
                   int multiprocessors) {
    return most_of(p, call, multiprocessors) > 0;
}

sm90_spans sm90_spans_of(const rope_attention_problem *p, const rope_attention_call *whole,
                         const rope_attention_call *part, const gpu_sm90_memory *memory,
                         int multiprocessors) {
    sm90_schedule tiles = {.pack = pack_of(part)};
    sm90_spans spans = {.sums = memory->spans,
                        .most = most_of(p, whole, multiprocessors),
                        .blocks = multiprocessors,
                        .heads = (int32_t)tiles_of(whole, 1)};
    for (int i = 1; i <= SM90_SPANS; i++)
        spans.per[i] = sm90_divisor_of(i).per;
    (void)sm90_count_tiles(part, SM90_ROWS, &tiles); /* as gpu_sm90_fits() has seen */
    const int64_t sequences = rope_attention_sequences(part);
    if (spans.most && sequences <= SPREAD_SEQUENCES && tiles.tiles < multiprocessors &&
        tiles.tiles <= SM90_SPREAD) {
        spans.arrived = (uint32_t *)memory->tickets + SM90_ARRIVED;
        spans.own = (int32_t)sequences * multiprocessors;
    }
    return spans;
}

size_t gpu_sm90_span_bytes(const rope_attention_problem *p, const gpu_attention_sizes *s,
                           int multiprocessors) {
    const size_t of_block = SM90_ROWS * (p->head_dim > 64 || p->v_head_dim > 64 ? 128 : 64) * 4 +
                            256 * 4 * sizeof(float);
    if (spans_of(p, s->k_tokens) < 2 || !sm90_span_kernel_of(p))
        return 0;
    return (size_t)(multiprocessors * (gpu_at_most(s->sequences, SPREAD_SEQUENCES) + 1)) * of_block;
}
