/* Which calls gather keys and values of a cache, in which parts, and that launch. */
#include "backends/gpu/attention/gather.h"

#include "backends/gpu/attention/choose.h"
#include "backends/gpu/attention/kernels.h"
#include "backends/gpu/attention/prologue.h"
#include "backends/gpu/geometry.h"
#include "common/math/attention.h"

#include <math.h>
#include <string.h>

/* The most bytes, but those of one head of a sequence; rows of queries that are many. */
enum { MOST = 256 << 20, MANY = 1024 };

static int converts(const rope_attention_problem *p, const rope_append_steps *steps) {
    return steps->store_dtype != p->rope.dtype || steps->dim_block != steps->head_dim;
}

int gpu_attention_converts(const rope_attention_problem *p) {
    return p->cache && ((!p->rotates[1] && converts(p, &p->k)) || converts(p, &p->v));
}

/* Of keys and values of a sequence's head. */
static double bytes_within(const rope_attention_problem *p, const gpu_attention_sizes *s) {
    return 2.0 * (p->head_dim + p->v_head_dim) * (double)s->k_tokens;
}

static double bytes_of(const rope_attention_problem *p, const rope_attention_call *call) {
    const gpu_attention_sizes s = gpu_attention_sizes_of(p, call);
    return gpu_attention_are_same(p, call) ? 2.0 * p->head_dim * (double)s.k_tokens
                                           : bytes_within(p, &s);
}

int gpu_attention_gathers_at_once(const rope_attention_problem *p,
                                  const rope_attention_call *call) {
    return bytes_of(p, call) * (double)call->k.heads * (double)rope_attention_sequences(call) <=
           MOST;
}

/* Whether packed sequences have so many rows of queries that not all have few. */
static int has_many(const rope_attention_call *call) {
    const int64_t group = call->rope.tensor[0].heads / call->k.heads;
    return !call->q_lengths &&
           call->rope.tokens * group - rope_attention_sequences(call) * GPU_SPLIT_ROWS >= MANY;
}

/* Whether a row's tree or a position that may not be there is looked for. */
static int looks(const rope_attention_problem *p) {
    return p->mask == ROPE_MASK_TREE || (p->rotates[0] && p->rope.angle_mode == ROPE_ANGLE_TABLE &&
                                         p->rope.out_of_range == ROPE_OUT_OF_RANGE_ERROR);
}

/* Converted keys and values of all sequences may be many times what a cache has. So they take turns
 * in the same memory: some sequences, or some heads of one. Not where sequences may all have few
 * queries, which are left out: these launches would be in vain. */
int gpu_attention_gathers(const rope_attention_problem *p, const rope_attention_call *call,
                          int packed) {
    const int varies =
        (call->rope.position.cu_seqlens || call->q_lengths) && !(packed && has_many(call));
    return (!(varies || looks(p)) || gpu_attention_gathers_at_once(p, call)) &&
           (gpu_attention_converts(p) || bytes_of(p, call) <= MOST);
}

int gpu_attention_gathers_for_all(const rope_attention_problem *p,
                                  const rope_attention_call *call) {
    return gpu_attention_converts(p) && gpu_attention_gathered_fits(p, call) &&
           bytes_of(p, call) <= MOST && (!looks(p) || gpu_attention_gathers_at_once(p, call));
}

/* How many of `count` there is room for, one at least. */
static int64_t fit(double bytes, int64_t count) {
    const double most = bytes > 0 ? floor(MOST / bytes) : (double)count;
    return most < 1 ? 1 : most < (double)count ? (int64_t)most : count;
}

/* Smaller calls may have larger parts. */
double gpu_attention_gathered(const rope_attention_problem *p, const gpu_attention_sizes *s,
                              int for_all) {
    const double head = bytes_within(p, s), all = head * (double)s->k_heads * (double)s->sequences,
                 most = gpu_attention_converts(p) && !for_all && head > MOST ? head : MOST;
    return all < most ? all : most;
}

int gpu_attention_next_part(const rope_attention_problem *p, const rope_attention_call *call,
                            gpu_attention_part *part) {
    const int64_t sequences = rope_attention_sequences(call), heads = call->k.heads;
    const double head = bytes_of(p, call), all = head * (double)heads;
    part->head += part->heads;
    if (part->head >= heads) {
        part->head = 0;
        part->sequence += part->sequences;
    }
    part->sequences = gpu_at_most(sequences - part->sequence, fit(all, sequences));
    part->heads = gpu_at_most(heads - part->head, all <= MOST ? heads : fit(head, heads));
    return part->sequences > 0;
}

/* --- a part --- */

static int64_t element_bytes(int32_t dtype) {
    return dtype >= ROPE_F8E4M3 ? 1 : dtype == ROPE_F32 ? 4 : 2;
}

static void *skip(const void *list, int64_t bytes) {
    return list ? (char *)(uintptr_t)list + bytes : NULL;
}

static void skip_cached(const rope_attention_problem *p, const rope_append_steps *steps,
                        const gpu_attention_part *part, rope_append_operand *o) {
    const int64_t row = p->cache == ROPE_CACHE_SEQUENCE ? part->sequence : 0;
    o->heads = part->heads;
    o->out = skip(o->out, 2 * (part->sequence * o->out_stride[0] + part->head * o->out_stride[2]));
    o->cache = skip(o->cache, (row * o->cache_stride[0] + part->head * o->cache_stride[2]) *
                                  element_bytes(steps->store_dtype));
    if (o->scale)
        o->scale += row * o->scale_stride[0] + part->head * o->scale_stride[2];
}

rope_attention_call gpu_attention_part_of(const rope_attention_problem *p,
                                          const rope_attention_call *call,
                                          const gpu_attention_part *part) {
    rope_attention_call c = *call;
    rope_operand *q = &c.rope.tensor[0];
    rope_position_map *map = &c.rope.position;
    const int64_t n = part->sequence, row = map->cu_seqlens ? 0 : n, width = map->wide ? 8 : 4,
                  head = part->head * (q->heads / c.k.heads);
    q->heads = part->heads * (q->heads / c.k.heads);
    q->in = skip(q->in, 2 * (row * q->in_stride[0] + head * q->in_stride[2]));
    q->out = skip(q->out, 2 * (row * q->out_stride[0] + head * q->out_stride[2]));
    c.out = skip(c.out, 2 * (row * c.out_stride[0] + head * c.out_stride[2]));
    if (c.lse)
        c.lse += row * c.lse_stride[0] + head * c.lse_stride[2];
    if (map->cu_seqlens)
        map->sequences = part->sequences;
    else
        c.rope.batch = part->sequences;
    map->cu_seqlens = skip(map->cu_seqlens, n * width);
    c.q_lengths = skip(c.q_lengths, n * width);
    c.k_lengths = skip(c.k_lengths, n * width);
    c.sinks = skip(c.sinks, head * element_bytes(p->sink_dtype));
    c.block_table = skip(c.block_table, n * c.table_stride[0] * (p->table_wide ? 8 : 4));
    c.pages -= p->cache == ROPE_CACHE_SEQUENCE ? n : 0;
    skip_cached(p, &p->k, part, &c.k);
    skip_cached(p, &p->v, part, &c.v);
    return c;
}

/* --- the launch --- */

static int takes(const rope_attention_problem *p, const rope_append_steps *steps,
                 const rope_append_operand *o) {
    return !o->out && converts(p, steps);
}

int32_t gpu_attention_gathered_fits(const rope_attention_problem *p,
                                    const rope_attention_call *call) {
    return (takes(p, &p->k, &call->k) ? GPU_TILE_K : 0) |
           (takes(p, &p->v, &call->v) ? GPU_TILE_V : 0);
}

static gpu_gathered rows_of(const rope_attention_call *call, rope_append_operand *o, int64_t dim,
                            char **memory) {
    const int64_t stride[4] = {call->k_tokens * o->heads * dim, o->heads * dim, dim, 1};
    o->out = *memory;
    memcpy(o->out_stride, stride, sizeof stride);
    *memory += 2 * rope_attention_sequences(call) * stride[0];
    return (gpu_gathered){o->out, call->k_tokens};
}

gpu_gathering gpu_attention_gathering(const rope_attention_problem *p, rope_attention_call *call,
                                      void *memory, int all) {
    char *at = memory;
    gpu_gathering g = {.tile = 1,
                       .k_moves = gpu_moves_cache(p, &p->k, call, &call->k),
                       .v_moves = gpu_moves_cache(p, &p->v, call, &call->v)};
    const int same = gpu_attention_are_same(p, call);
    if (all || takes(p, &p->k, &call->k))
        g.keys = rows_of(call, &call->k, p->head_dim, &at);
    if (same && g.keys.data) {
        call->v.out = call->k.out;
        memcpy(call->v.out_stride, call->k.out_stride, sizeof call->v.out_stride);
    } else if (all || takes(p, &p->v, &call->v))
        g.values = rows_of(call, &call->v, p->v_head_dim, &at);
    return g;
}

gpuError_t gpu_attention_launch_gather(const rope_attention_problem *p,
                                       const rope_attention_call *call, const gpu_gathering *how,
                                       int64_t blocks, gpuStream_t stream, int early) {
    void *arguments[] = {(void *)(uintptr_t)p, (void *)(uintptr_t)call, (void *)(uintptr_t)how};
    const int64_t tiles =
        rope_attention_sequences(call) * gpu_divide_up(call->k_tokens, GPU_GATHERED);
    const dim3 grid = {(uint32_t)gpu_at_most(tiles, blocks), 1, 1},
               block = {GPU_ATTENTION_THREADS, 1, 1};
    return gpu_launch_kernel(gpu_attention_gather_kernels[p->rope.dtype == ROPE_BF16], grid, block,
                             arguments, 0, stream, early);
}
