#include "common/ops/rope_problem.h"

#include "common/frequency/frequency.h"
#include "common/frequency/rule.h"
#include "common/ops/rope_descriptor.h"
#include "common/status.h"

#include <stdlib.h>

/* One block: the struct that begins with the problem, then every list of every set, each of
 * `padded` entries, widest elements first. */
typedef struct list_block {
    rope_problem *problem;
    uint64_t *turns[2], *top[2], *low[2];
    int64_t *xpos_rate;
    double *omega[2];
    float *inv_freq_f32[2];
    uint8_t *pair_axis;
} list_block;

static int carve(list_block *block, size_t size, int32_t padded) {
    const size_t n = (size_t)padded, head = (size + 63) / 64 * 64;
    char *memory =
        aligned_alloc(64, head + (n * (2 * 3 * 8 + 8 + 2 * 8 + 2 * 4 + 1) + 63) / 64 * 64);
    if (!memory)
        return 0;
    block->problem = (rope_problem *)(void *)memory;
    uint64_t *words = (uint64_t *)(void *)(memory + head);
    for (int s = 0; s < 2; s++) {
        block->turns[s] = words + (size_t)(3 * s) * n;
        block->top[s] = words + (size_t)(3 * s + 1) * n;
        block->low[s] = words + (size_t)(3 * s + 2) * n;
    }
    block->xpos_rate = (int64_t *)(words + 6 * n);
    block->omega[0] = (double *)(words + 7 * n);
    block->omega[1] = (double *)(words + 8 * n);
    block->inv_freq_f32[0] = (float *)(words + 9 * n);
    block->inv_freq_f32[1] = block->inv_freq_f32[0] + n;
    block->pair_axis = (uint8_t *)(block->inv_freq_f32[1] + n);
    return 1;
}

static void fill_set(const rope_desc *desc, list_block *block, int32_t s, int32_t padded,
                     rope_frequency_set *set) {
    const int32_t pairs = desc->rotary_dim / 2;
    const double factor = rope_rule_attention(desc, s);
    rope_rule rule;
    rope_rule_begin(&rule, desc, s);
    for (int32_t i = 0; i < padded; i++) {
        rope_real omega = i < pairs ? rope_rule_next(&rule) : rope_real_of(0);
        rope_real turns = rope_real_multiply(omega, rope_real_turn);
        uint64_t whole;
        rope_real_fixed(turns, 64, &whole, &block->turns[s][i]);
        rope_real_fixed(turns, 128, &block->top[s][i], &block->low[s][i]);
        block->omega[s][i] = rope_real_double(omega);
        block->inv_freq_f32[s][i] = (float)block->omega[s][i];
    }
    set->turns = block->turns[s];
    set->turns_top = block->top[s];
    set->turns_low = block->low[s];
    set->omega = block->omega[s];
    set->inv_freq = block->inv_freq_f32[s];
    set->attention_factor = desc->direction == ROPE_INVERSE ? 1.0 / factor : factor;
}

static void copy_fields(const rope_desc *desc, rope_problem *problem) {
    *problem = (rope_problem){
        .dtype = desc->dtype,
        .pairs = desc->rotary_dim / 2,
        .head_dim = {desc->head_dim, desc->k_head_dim},
        .rotary_offset = {desc->rotary_offset, desc->k_rotary_offset},
        .pairing_in = desc->pairing_in,
        .pairing_out = desc->pairing_out,
        .direction = desc->direction,
        .angle_mode = desc->angle_mode,
        .arithmetic = desc->arithmetic,
        .axes = desc->axes,
        .position_dtype = desc->position_dtype,
        .shard = desc->shard,
        .shard_rank = desc->shard_rank,
        .shard_size = desc->shard_size,
        .table_dtype = desc->table_dtype,
        .table_width = desc->table_width,
        .out_of_range = desc->out_of_range,
        .launch = desc->launch,
        .long_from = desc->original_max_position_embeddings,
        .xpos_center = desc->xpos_center,
    };
}

rope_status rope_problem_create(const rope_desc *desc, size_t size, rope_problem **made) {
    int32_t pairs = desc->rotary_dim / 2;
    int32_t padded = (pairs + ROPE_PAIR_PADDING - 1) / ROPE_PAIR_PADDING * ROPE_PAIR_PADDING;
    list_block block;
    if (!carve(&block, size, padded))
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for the lists of %d pairs", pairs);
    rope_problem *problem = *made = block.problem;
    copy_fields(desc, problem);
    if (pairs == 0)
        return ROPE_OK;
    for (int32_t i = 0; i < padded; i++)
        block.pair_axis[i] = (uint8_t)(i < pairs ? rope_descriptor_axis(desc, i) : 0);
    problem->pair_axis = block.pair_axis;
    if (desc->angle_mode != ROPE_ANGLE_TABLE) {
        problem->frequency_sets = rope_frequency_sets(desc);
        for (int32_t s = 0; s < 2 && s < problem->frequency_sets; s++)
            fill_set(desc, &block, s, padded, &problem->set[s]);
    }
    if (desc->xpos_scale_base > 0) {
        rope_rule_xpos(desc, block.xpos_rate);
        for (int32_t i = pairs; i < padded; i++)
            block.xpos_rate[i] = 0;
        problem->xpos_rate = block.xpos_rate;
    }
    return ROPE_OK;
}
