/* Which sequences and heads of a call are gathered and attended together. */
#include "backends/gpu/attention/sm90/kernels.h"
#include "backends/gpu/geometry.h"
#include "common/math/attention.h"

#include <math.h>

/* Of keys and values of a sequence's head. */
double sm90_gathered_head(const rope_attention_problem *p, const gpu_attention_sizes *s) {
    return 2.0 * (p->head_dim + p->v_head_dim) * (double)s->k_tokens;
}

/* How many of `count` there is room for, one at least. */
static int64_t fit(double bytes, int64_t count) {
    const double most = bytes > 0 ? floor(SM90_GATHER_MOST / bytes) : (double)count;
    return most < 1 ? 1 : most < (double)count ? (int64_t)most : count;
}

/* Converted keys and values of all sequences may be many times what a cache has. So they take turns
 * in the same memory: some sequences, or some heads of one. Not where sequences may all have few
 * queries, which this kernel leaves out: these launches would be in vain. */
static sm90_part first_part(const rope_attention_problem *p, const gpu_attention_sizes *s) {
    const double head = sm90_gathered_head(p, s), all = head * (double)s->k_heads;
    return (sm90_part){.sequences = fit(all, s->sequences),
                       .heads = all <= SM90_GATHER_MOST ? s->k_heads : fit(head, s->k_heads)};
}

int sm90_next_part(const rope_attention_problem *p, const rope_attention_call *call,
                   sm90_part *part) {
    const gpu_attention_sizes s = gpu_attention_sizes_of(p, call);
    const sm90_part most = first_part(p, &s);
    part->head += part->heads;
    if (part->head >= s.k_heads) {
        part->head = 0;
        part->sequence += part->sequences;
    }
    part->sequences = gpu_at_most(s.sequences - part->sequence, most.sequences);
    part->heads = gpu_at_most(s.k_heads - part->head, most.heads);
    return part->sequences > 0;
}

static int64_t element_of(int32_t dtype) {
    return dtype >= ROPE_F8E4M3 ? 1 : dtype == ROPE_F32 ? 4 : 2;
}

static const void *skip(const void *list, int64_t bytes) {
    return list ? (const char *)list + bytes : NULL;
}

static void skip_cached(const rope_attention_problem *p, const rope_append_steps *steps,
                        const sm90_part *part, rope_append_operand *o) {
    const int64_t row = p->cache == ROPE_CACHE_SEQUENCE ? part->sequence : 0;
    o->heads = part->heads;
    o->cache = (char *)o->cache + (row * o->cache_stride[0] + part->head * o->cache_stride[2]) *
                                      element_of(steps->store_dtype);
    if (o->scale)
        o->scale += row * o->scale_stride[0] + part->head * o->scale_stride[2];
}

rope_attention_call sm90_part_of(const rope_attention_problem *p, const rope_attention_call *call,
                                 const sm90_part *part) {
    rope_attention_call c = *call;
    rope_operand *q = &c.rope.tensor[0];
    rope_position_map *map = &c.rope.position;
    const int64_t n = part->sequence, row = map->cu_seqlens ? 0 : n, width = map->wide ? 8 : 4,
                  head = part->head * (q->heads / c.k.heads);
    q->heads = part->heads * (q->heads / c.k.heads);
    q->in = skip(q->in, 2 * (row * q->in_stride[0] + head * q->in_stride[2]));
    q->out =
        (void *)(uintptr_t)skip(q->out, 2 * (row * q->out_stride[0] + head * q->out_stride[2]));
    c.out = (char *)c.out + 2 * (row * c.out_stride[0] + head * c.out_stride[2]);
    if (c.lse)
        c.lse += row * c.lse_stride[0] + head * c.lse_stride[2];
    if (map->cu_seqlens)
        map->sequences = part->sequences;
    else
        c.rope.batch = part->sequences;
    map->cu_seqlens = skip(map->cu_seqlens, n * width);
    c.q_lengths = skip(c.q_lengths, n * width);
    c.k_lengths = skip(c.k_lengths, n * width);
    c.sinks = skip(c.sinks, head * element_of(p->sink_dtype));
    c.block_table = skip(c.block_table, n * c.table_stride[0] * (p->table_wide ? 8 : 4));
    c.pages -= p->cache == ROPE_CACHE_SEQUENCE ? n : 0;
    skip_cached(p, &p->k, part, &c.k);
    skip_cached(p, &p->v, part, &c.v);
    return c;
}
