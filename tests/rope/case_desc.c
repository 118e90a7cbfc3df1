/* The descriptor of a generated case: shape, angles, frequency rule, axes, shard. */
#include "tests/rope/case_parts.h"

#include <math.h>

int64_t case_rotary_dim(const rope_desc *desc) {
    return desc->rotary_dim ? desc->rotary_dim : desc->head_dim;
}

static int32_t one_of(test_random *r, const int32_t *list, int32_t count) {
    return list[random_between(r, 0, count - 1)];
}

static int32_t even_up_to(test_random *r, int64_t most) {
    return (int32_t)(2 * random_between(r, 0, most / 2));
}

/* As they came, but multiples of 16 and 8. */
static void round_shape(test_random *r, rope_desc *d) {
    d->dtype = (int32_t)random_between(r, ROPE_F32, ROPE_BF16);
    d->head_dim = (d->head_dim + 15) / 16 * 16;
    d->rotary_dim = (d->rotary_dim + 15) / 16 * 16;
    d->rotary_offset = d->rotary_offset / 8 * 8;
    if (d->rotary_offset > d->head_dim - case_rotary_dim(d))
        d->rotary_offset = 0;
    d->k_head_dim = (d->k_head_dim + 15) / 16 * 16;
    d->k_rotary_offset = d->k_rotary_offset / 8 * 8;
    if (d->k_head_dim && d->k_head_dim < case_rotary_dim(d) + d->k_rotary_offset)
        d->k_head_dim = (int32_t)case_rotary_dim(d) + d->k_rotary_offset;
}

static void choose_shape(test_random *r, rope_desc *d, const case_wish *wish) {
    static const int32_t dtypes[] = {ROPE_F32,  ROPE_F32,  ROPE_F16, ROPE_F16,
                                     ROPE_BF16, ROPE_BF16, ROPE_F64};
    static const int32_t dims[] = {2,  4,  6,   7,   34,  64,  64,  72,
                                   80, 96, 100, 128, 128, 192, 256, 576};
    d->dtype = one_of(r, dtypes, wish->single ? 6 : 7);
    d->head_dim = wish->latent ? 576 : one_of(r, dims, 16);
    if (wish->latent) {
        d->rotary_dim = 64;
        d->rotary_offset = 512;
    } else if (d->head_dim % 2 || random_chance(r, 40)) {
        d->rotary_dim = even_up_to(r, d->head_dim - 2) + 2;
        d->rotary_offset = even_up_to(r, d->head_dim - d->rotary_dim);
    }
    if (random_chance(r, 25)) {
        int64_t rotary = case_rotary_dim(d);
        d->k_head_dim = (int32_t)(random_chance(r, 50) ? rotary : random_between(r, rotary, 576));
        d->k_rotary_offset = even_up_to(r, d->k_head_dim - rotary);
    }
    if (wish->vectors)
        round_shape(r, d);
    d->pairing_in = (int32_t)random_between(r, 0, 2);
    d->pairing_out = (int32_t)random_between(r, 0, 2);
    d->direction = (int32_t)random_between(r, 0, 3);
    d->position_dtype = random_chance(r, 50) ? ROPE_I32 : random_chance(r, 50) ? ROPE_I64 : 0;
    d->arithmetic = random_chance(r, 30) ? ROPE_ARITHMETIC_MODEL_DTYPE
                                         : (int32_t)random_between(r, 0, ROPE_ARITHMETIC_FP32);
    d->launch = (int32_t)random_between(r, 0, ROPE_LAUNCH_PROGRAMMATIC);
}

static void choose_angle(test_random *r, rope_desc *d, const case_wish *wish) {
    static const int32_t modes[] = {0, ROPE_ANGLE_EXACT, ROPE_ANGLE_F32, ROPE_ANGLE_TABLE};
    d->angle_mode = wish->angle_mode ? wish->angle_mode : one_of(r, modes, 4);
    if (d->angle_mode != ROPE_ANGLE_TABLE)
        return;
    d->table_dtype = random_chance(r, 40) ? d->dtype : (int32_t)random_between(r, 0, ROPE_F32);
    d->table_width =
        (int32_t)random_between(r, 0, wish->vectors ? ROPE_TABLE_HALF : ROPE_TABLE_FULL);
    d->out_of_range = (int32_t)random_between(r, 0, ROPE_OUT_OF_RANGE_CLAMP);
}

static void choose_yarn(test_random *r, rope_desc *d) {
    d->factor = random_real(r, 0.5, 40);
    d->original_max_position_embeddings = random_between(r, 16, 65536);
    d->truncate = (int32_t)random_between(r, 0, ROPE_TRUNCATE_OFF);
    if (random_chance(r, 40))
        d->beta_fast = random_real(r, 1, 64);
    if (random_chance(r, 40))
        d->beta_slow = random_real(r, 0.25, 2);
    if (random_chance(r, 30)) {
        d->mscale = random_real(r, 0.5, 1.5);
        d->mscale_all_dim = random_chance(r, 50) ? d->mscale : random_real(r, 0.5, 1.5);
    }
}

static void choose_longrope(test_random *r, test_case *c, int32_t pairs) {
    rope_desc *d = &c->desc;
    for (int32_t i = 0; i < pairs; i++) {
        c->list[0][i] = random_real(r, 1, 3);
        c->list[1][i] = random_real(r, 1, 60);
    }
    d->short_factor = c->list[0];
    d->long_factor = c->list[1];
    d->factor_count = pairs;
    d->longrope_select = (int32_t)random_between(r, 0, ROPE_LONGROPE_LONG);
    d->original_max_position_embeddings = random_between(r, 2, 200);
    d->max_position_embeddings = random_between(r, 2, 4000);
    if (random_chance(r, 30))
        d->factor = random_real(r, 0.5, 32);
    if (random_chance(r, 20)) {
        d->short_mscale = random_real(r, 0.5, 1.5);
        d->long_mscale = random_real(r, 0.5, 1.5);
    }
}

static void choose_inv_freq(test_random *r, test_case *c, int32_t pairs) {
    for (int32_t i = 0; i < pairs; i++) {
        int exponent = (int)random_between(r, -40, 3);
        c->list[0][i] = random_chance(r, 5) ? 0 : ldexp(random_real(r, -1, 1), exponent);
    }
    c->desc.inv_freq = c->list[0];
    c->desc.factor_count = pairs;
}

static void choose_rule(test_random *r, test_case *c, const case_wish *wish) {
    rope_desc *d = &c->desc;
    int32_t pairs = (int32_t)case_rotary_dim(d) / 2;
    if (d->angle_mode == ROPE_ANGLE_TABLE)
        return;
    d->rope_type =
        wish->rope_type ? wish->rope_type : (int32_t)random_between(r, 0, ROPE_TYPE_INV_FREQ);
    if (d->rope_type == ROPE_TYPE_DYNAMIC && pairs == 1)
        d->rope_type = ROPE_TYPE_LINEAR;
    if (d->rope_type != ROPE_TYPE_INV_FREQ && random_chance(r, 60))
        d->rope_theta = random_chance(r, 50) ? 500000 : random_real(r, 100, 5e6);
    switch (d->rope_type) {
    case ROPE_TYPE_LINEAR:
        d->factor = random_real(r, 0.5, 16);
        break;
    case ROPE_TYPE_DYNAMIC:
        if (random_chance(r, 40)) {
            d->alpha = random_real(r, 1, 1000);
            break;
        }
        d->factor = random_real(r, 1, 16);
        d->max_position_embeddings = random_between(r, 16, 8192);
        d->sequence_length = random_chance(r, 60) ? random_between(r, 1, 100000) : 0;
        break;
    case ROPE_TYPE_YARN:
        choose_yarn(r, d);
        break;
    case ROPE_TYPE_LONGROPE:
        choose_longrope(r, c, pairs);
        break;
    case ROPE_TYPE_LLAMA3:
        d->factor = random_real(r, 1, 32);
        d->low_freq_factor = random_real(r, 0.5, 2);
        d->high_freq_factor =
            d->low_freq_factor + (random_chance(r, 20) ? 0 : random_real(r, 0, 8));
        d->original_max_position_embeddings = random_between(r, 128, 16384);
        break;
    case ROPE_TYPE_PROPORTIONAL:
        d->partial_rotary_factor = random_chance(r, 80) ? random_real(r, 0.05, 1) : 0;
        d->factor = random_chance(r, 30) ? random_real(r, 1, 8) : 0;
        break;
    case ROPE_TYPE_INV_FREQ:
        choose_inv_freq(r, c, pairs);
        break;
    default:
        break;
    }
    if (random_chance(r, 20) && d->mscale == 0 && d->short_mscale == 0)
        d->attention_factor = random_real(r, 0.25, 2);
    if (random_chance(r, 10)) {
        d->xpos_scale_base = 512;
        d->xpos_center = random_between(r, -1000, 1000);
    }
}

static void choose_sections(test_random *r, rope_desc *d, int32_t pairs) {
    int32_t left = pairs;
    for (int32_t a = d->axes - 1; a > 0; a--) {
        int32_t most = d->axis_layout == ROPE_AXES_INTERLEAVED ? (pairs + 2 - a) / 3 : left;
        d->sections[a] = (int32_t)random_between(r, 0, most);
        left -= d->sections[a];
    }
    d->sections[0] = left;
}

static void choose_axes(test_random *r, test_case *c, const case_wish *wish) {
    rope_desc *d = &c->desc;
    int32_t pairs = (int32_t)case_rotary_dim(d) / 2;
    if (wish->single_axis || random_chance(r, 70))
        return;
    d->axis_layout = (int32_t)random_between(r, ROPE_AXES_CHUNKED, ROPE_AXES_CUSTOM);
    int three = d->axis_layout == ROPE_AXES_INTERLEAVED || d->axis_layout == ROPE_AXES_ALTERNATING;
    d->axes = three ? 3 : (int32_t)random_between(r, 2, ROPE_MAX_AXES);
    if (d->axis_layout == ROPE_AXES_ALTERNATING) {
        d->sections[1] = d->sections[2] = (int32_t)random_between(r, 0, pairs / 2);
        d->sections[0] = pairs - 2 * d->sections[1];
        return;
    }
    if (d->axis_layout != ROPE_AXES_CUSTOM) {
        choose_sections(r, d, pairs);
        int plain = d->rope_type <= ROPE_TYPE_LINEAR && d->angle_mode != ROPE_ANGLE_TABLE;
        if (d->axis_layout == ROPE_AXES_CHUNKED && plain)
            d->axis_frequency = (int32_t)random_between(r, 0, ROPE_AXIS_FREQUENCY_RESTART);
        return;
    }
    for (int32_t i = 0; i < pairs; i++)
        c->axis[i] = (uint8_t)random_between(r, 0, d->axes - 1);
    d->pair_axis = c->axis;
}

static void choose_shard(test_random *r, rope_desc *d) {
    if (!random_chance(r, 20))
        return;
    d->shard = (int32_t)random_between(r, ROPE_SHARD_NONE, ROPE_SHARD_ZIGZAG);
    if (d->shard == ROPE_SHARD_NONE)
        return;
    d->shard_size = (int32_t)random_between(r, 1, 4);
    d->shard_rank = (int32_t)random_between(r, 0, d->shard_size - 1);
}

void case_choose_desc(test_case *c, const case_wish *wish) {
    choose_shape(&c->random, &c->desc, wish);
    choose_angle(&c->random, &c->desc, wish);
    choose_rule(&c->random, c, wish);
    choose_axes(&c->random, c, wish);
    choose_shard(&c->random, &c->desc);
}
