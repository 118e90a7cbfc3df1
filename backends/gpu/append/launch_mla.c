/* The launch of mla. */
#include "backends/gpu/append/launch_plan.h"

#include "backends/gpu/platform/tuning.h"

/* A latent part that is normalised, beside a window. */
static const char *declines_latent(const rope_problem *r, const rope_append_steps *s) {
    const int32_t width = 2 * r->pairs, at = r->rotary_offset[ROPE_APPEND_K];
    if (!s->rotates || s->norm_dim + width != s->head_dim ||
        at != (s->norm_offset ? 0 : s->norm_dim) || (s->norm_offset && s->norm_offset != width))
        return "declined: k is not a norm's elements beside a window";
    if (s->norm != ROPE_NORM_RMS || !s->weight || s->weight_dtype != r->dtype ||
        (s->norm_dim != 32 * GPU_APPEND_V && s->norm_dim != 64 * GPU_APPEND_V))
        return "declined: a norm is not RMS of 256 or 512 elements of k with weights of dtype";
    return s->factor != 1 || s->dim_block != s->head_dim || s->store_dtype != r->dtype
               ? "declined: k has a factor, blocks or a store_dtype of its own"
               : NULL;
}

const char *gpu_append_mla_declines(const rope_append_problem *p) {
    const rope_append_steps *q = &p->steps[ROPE_APPEND_Q];
    const char *declined = gpu_append_declines_16_bits(p);
    if (!declined)
        declined = gpu_append_declines_angles(&p->rope);
    if (declined)
        return declined;
    if (p->cache != ROPE_CACHE_SLOTS || p->k_source == ROPE_SOURCE_CACHE)
        return "declined: the cache is not one of slots to be written";
    if (q->norm || q->factor != 1 || q->store_dtype != p->rope.dtype)
        return "declined: q has a norm, a factor or a store_dtype of its own";
    return declines_latent(&p->rope, &p->steps[ROPE_APPEND_K]);
}

/* Grid and block of a geometry; 0 where it does not fit. */
static int lay_out_mla(const gpu_append_state *state, const rope_append_call *call,
                       int32_t geometry, gpu_append_plan *l) {
    const int64_t lanes = state->problem.rope.pairs / (geometry == GPU_NARROW ? 2 : 4),
                  rows = call->rope.batch * call->rope.tokens,
                  units = call->tensor[ROPE_APPEND_Q].heads / 2;
    const int64_t z = gpu_at_most(rows, GPU_MLA_THREADS / 32);
    if (lanes > 32 || 32 % lanes || call->tensor[ROPE_APPEND_Q].heads % 2 ||
        units > INT32_MAX / 4 || gpu_divide_up(rows, z) > GPU_GRID_YZ_MOST)
        return 0;
    const uint32_t y = gpu_divisor(&units, 1, GPU_MLA_THREADS / (lanes * z));
    if (lanes * y < 32)
        return 0;
    l->block = (dim3){(uint32_t)lanes, y, (uint32_t)z};
    l->grid = (dim3){(uint32_t)(1 + units / y), (uint32_t)gpu_divide_up(rows, z), 1};
    return 1;
}

static int fill_mla(const rope_append_problem *p, const rope_append_call *call,
                    gpu_append_mla_call *mla) {
    const rope_append_operand *q = &call->tensor[ROPE_APPEND_Q], *k = &call->tensor[ROPE_APPEND_K];
    const rope_append_steps *s = &p->steps[ROPE_APPEND_K];
    gpu_append_plain_operand *o = &mla->plain.operand[ROPE_APPEND_Q];
    const int64_t from = 2 * (int64_t)p->rope.rotary_offset[ROPE_APPEND_Q];
    if (k->heads != 1 || call->tensor[ROPE_APPEND_V].heads || !gpu_append_is_plain(p, call) ||
        (q->heads && q->in != q->out) || !gpu_append_fill_operands(p, call, &mla->plain))
        return 0;
    mla->plain.share = 1.0f / (float)s->norm_dim;
    mla->latent = (uint16_t)(2 * s->norm_offset);
    mla->window = (uint16_t)(2 * p->rope.rotary_offset[ROPE_APPEND_K]);
    mla->vectors = s->norm_dim / (32 * GPU_APPEND_V);
    o->store = q->heads ? o->store + from : NULL;
    return 1;
}

int gpu_append_plan_mla(const gpu_append_state *state, const rope_append_call *call,
                        gpu_append_plan *l) {
    const rope_append_problem *p = &state->problem;
    const int32_t wide = gpu_append_geometry_of(state, call, 0) != GPU_NARROW;
    l->mla = (gpu_append_mla_call){.plain = gpu_append_plain_call_of(p, call)};
    if (!fill_mla(p, call, &l->mla) || !lay_out_mla(state, call, wide ? GPU_WIDE : GPU_NARROW, l))
        return 0;
    l->kernel = state->kernels->mla[wide][gpu_pairing_of(&p->rope)];
    l->mla.plain.flags = (uint16_t)gpu_append_plain_flags(state, call, l);
    l->arguments[0] = &l->mla;
    return 1;
}
