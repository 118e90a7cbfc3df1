/* Whether sequences of one query take their own kernel, and that kernel's parameters. */
#include "backends/gpu/attention/launch.h"
#include "backends/gpu/geometry.h"
#include "common/math/attention.h"

#include <limits.h>

/* Keys of a block's last tiles are counted beyond the capacity. */
enum { MOST_KEYS = INT_MAX - (1 << 16) };

static int fits_int(int64_t n) {
    return n >= 0 && n <= MOST_KEYS;
}

/* Every stride is a multiple of 8 where heads are moved in vectors. */
static gpu_decode_tensor tensor_of(const rope_append_operand *o) {
    if (!o->out && !o->in)
        return (gpu_decode_tensor){o->cache, (uint32_t)(o->cache_stride[0] / 8),
                                   (uint32_t)(o->cache_stride[1] / 8),
                                   (uint32_t)(o->cache_stride[2] / 8), 1};
    const int64_t *stride = o->out ? o->out_stride : o->in_stride;
    return (gpu_decode_tensor){o->out ? o->out : o->in, (uint32_t)(stride[0] / 8),
                               (uint32_t)(stride[1] / 8), (uint32_t)(stride[2] / 8), 0};
}

static int is_plain(const rope_attention_problem *p, const rope_attention_call *call) {
    const rope_problem *r = &p->rope;
    const rope_position_map *map = &call->rope.position;
    if (map->cu_seqlens ? call->q_lengths != NULL : call->rope.tokens != 1)
        return 0;
    if (call->k_position.cu_seqlens)
        return 0;
    if (p->mask == ROPE_MASK_TREE || p->ring)
        return 0;
    return !p->rotates[0] || call->rope.tensor[0].out ||
           (r->angle_mode == ROPE_ANGLE_EXACT && r->axes == 1 && r->frequency_sets == 1 &&
            !r->xpos_rate && r->pairing_in == r->pairing_out &&
            r->arithmetic == ROPE_ARITHMETIC_FP32 && !map->offsets);
}

static void fill_rotation(const rope_attention_problem *p, const rope_attention_call *call,
                          gpu_decode_call *d) {
    const rope_problem *r = &p->rope;
    const rope_position_map *map = &call->rope.position;
    if (!p->rotates[0] || call->rope.tensor[0].out)
        return;
    d->pairs = r->pairs;
    d->from = r->rotary_offset[0];
    d->flags |= (r->pairing_in == ROPE_PAIRING_INTERLEAVED ? GPU_DECODE_INTERLEAVED : 0) |
                (r->direction != ROPE_FORWARD ? GPU_DECODE_NEGATIVE : 0);
    d->turns = r->set[0].turns;
    d->factor = (float)r->set[0].attention_factor;
    d->ids = map->ids;
    d->id_row = map->id_stride[map->cu_seqlens ? 2 : 1];
    d->offset = map->offset;
}

static void fill_output(const rope_attention_call *call, gpu_decode_call *d) {
    const int packed = call->rope.position.cu_seqlens != NULL;
    d->out = call->out;
    d->out_stride[0] = call->out_stride[packed];
    d->out_stride[1] = call->out_stride[2];
    d->out_stride[2] = call->out_stride[3];
    d->lse = call->lse;
    d->lse_stride[0] = call->lse_stride[packed];
    d->lse_stride[1] = call->lse_stride[2];
    d->flag = call->rope.position_flag;
    d->sinks = call->sinks;
}

int gpu_decode_fits(const rope_attention_problem *p, const rope_attention_call *call) {
    return is_plain(p, call) && fits_int(rope_attention_capacity(p, call)) &&
           rope_attention_sequences(call) <= GPU_GRID_YZ_MOST &&
           call->rope.tensor[0].heads <= INT_MAX && call->pages <= INT_MAX;
}

gpu_decode_call gpu_decode_call_of(const rope_attention_problem *p, const rope_attention_call *call,
                                   const gpu_attention_parts *parts) {
    const int64_t page_size = p->cache ? p->page_size : INT_MAX;
    const rope_operand *q = &call->rope.tensor[0];
    const int64_t *stride = q->out ? q->out_stride : q->in_stride;
    const void *boundaries = call->rope.position.cu_seqlens;
    gpu_decode_call d = {.k = tensor_of(&call->k),
                         .v = tensor_of(&call->v),
                         .q = q->out ? q->out : q->in,
                         .q_row = (uint32_t)(stride[boundaries != NULL] / 8),
                         .q_head = (uint32_t)(stride[2] / 8),
                         .heads = (int32_t)q->heads,
                         .k_heads = (int32_t)call->k.heads,
                         .group = (int32_t)(q->heads / call->k.heads),
                         .dim = p->head_dim,
                         .v_dim = p->v_head_dim,
                         .flags = (call->rope.position.wide ? GPU_DECODE_WIDE : 0) |
                                  (p->table_wide ? GPU_DECODE_WIDE_TABLE : 0),
                         .capacity = (int32_t)rope_attention_capacity(p, call),
                         .page_size = (int32_t)gpu_at_most(page_size, INT_MAX),
                         .pages = p->cache ? (int32_t)call->pages : INT_MAX,
                         .window = (int32_t)gpu_at_most(p->window, INT_MAX),
                         .chunk = (int32_t)gpu_at_most(p->chunk, INT_MAX),
                         .most = (int32_t)gpu_at_most(rope_keys_most(p, INT64_MAX), INT_MAX),
                         .boundaries = boundaries,
                         .rows = call->rope.tokens,
                         .q_lengths = call->q_lengths,
                         .lengths = call->k_lengths,
                         .table = p->cache == ROPE_CACHE_TABLE ? call->block_table : NULL,
                         .table_row = call->table_stride[0],
                         .table_page = call->table_stride[1],
                         .scale = p->scale,
                         .soft_cap = p->soft_cap,
                         .sink_dtype = p->sink_dtype,
                         .parts = *parts};
    fill_rotation(p, call, &d);
    fill_output(call, &d);
    return d;
}
