#include "common/frequency/rule.h"

#include <stddef.h>

static const double default_theta = 10000, default_beta_fast = 32, default_beta_slow = 1;

static rope_real integer(int64_t x) {
    return rope_real_ratio(x, 1);
}

static rope_real inverse(rope_real x) {
    return rope_real_divide(integer(1), x);
}

static double or_default(double given, double otherwise) {
    return given != 0 ? given : otherwise;
}

static int is_below(rope_real x, int64_t limit) {
    return rope_real_compare(x, integer(limit)) < 0;
}

/* ln of the base; dynamic stretches it by (f s/L - (f - 1))^(r/(r-2)), or by alpha^(r/(r-2)). */
static rope_real log_base_of(const rope_desc *desc) {
    const int32_t r = desc->rotary_dim;
    rope_real log_theta = rope_real_log(rope_real_of(or_default(desc->rope_theta, default_theta)));
    if (desc->rope_type != ROPE_TYPE_DYNAMIC)
        return log_theta;
    rope_real stretch = rope_real_of(desc->alpha);
    if (desc->alpha == 0) {
        int64_t longest = desc->max_position_embeddings;
        int64_t length = desc->sequence_length > longest ? desc->sequence_length : longest;
        rope_real beyond = rope_real_ratio(length - longest, longest);
        stretch = rope_real_add(integer(1), rope_real_multiply(rope_real_of(desc->factor), beyond));
    }
    return rope_real_add(log_theta,
                         rope_real_multiply(rope_real_ratio(r, r - 2), rope_real_log(stretch)));
}

double rope_rule_base(const rope_desc *desc) {
    return rope_real_double(rope_real_exp(log_base_of(desc)));
}

/* r ln(L0 / 2 pi beta) / (2 ln base): the pair whose wave turns beta times in L0 positions. */
static rope_real yarn_corner(const rope_rule *rule, double beta) {
    const rope_desc *desc = rule->desc;
    rope_real length = integer(desc->original_max_position_embeddings);
    rope_real turns = rope_real_multiply(length, rope_real_turn);
    rope_real corner = rope_real_log(rope_real_divide(turns, rope_real_of(beta)));
    corner = rope_real_multiply(corner, rope_real_ratio(desc->rotary_dim, 2));
    return rope_real_divide(corner, rule->log_base);
}

/* Peng et al., YaRN (arXiv 2309.00071), section 3.2, with the bounds of Transformers. */
static void begin_yarn(rope_rule *rule) {
    const rope_desc *desc = rule->desc;
    const rope_real most = integer(desc->rotary_dim - 1);
    rope_real low = yarn_corner(rule, or_default(desc->beta_fast, default_beta_fast));
    rope_real high = yarn_corner(rule, or_default(desc->beta_slow, default_beta_slow));
    if (desc->truncate != ROPE_TRUNCATE_OFF) {
        low = rope_real_floor(low);
        high = rope_real_negate(rope_real_floor(rope_real_negate(high)));
    }
    if (is_below(low, 0))
        low = integer(0);
    if (rope_real_compare(high, most) > 0)
        high = most;
    if (rope_real_compare(low, high) == 0)
        high = rope_real_add(high, rope_real_ratio(1, 1000));
    rule->low = low;
    rule->high = high;
    rule->per_unit = inverse(rope_real_subtract(high, low));
}

static void begin_llama3(rope_rule *rule) {
    const rope_desc *desc = rule->desc;
    rule->low = rope_real_of(desc->low_freq_factor);
    rule->high = rope_real_of(desc->high_freq_factor);
    if (desc->high_freq_factor != desc->low_freq_factor)
        rule->per_unit = inverse(rope_real_subtract(rule->high, rule->low));
}

static int takes_long(const rope_desc *desc, int32_t set) {
    if (desc->longrope_select == ROPE_LONGROPE_STATIC)
        return desc->max_position_embeddings > desc->original_max_position_embeddings;
    if (desc->longrope_select == ROPE_LONGROPE_LONG)
        return 1;
    return desc->longrope_select != ROPE_LONGROPE_SHORT && set == 1;
}

/* The first pair, or the first of the next section: its power is 1. */
static void begin_powers(rope_rule *rule) {
    const rope_desc *desc = rule->desc;
    rope_real exponent = rope_real_ratio(-2, desc->rotary_dim);
    if (desc->axis_frequency == ROPE_AXIS_FREQUENCY_RESTART) {
        while (desc->sections[rule->axis] == 0)
            rule->axis++;
        rule->left = desc->sections[rule->axis++];
        exponent = rope_real_ratio(-1, rule->left);
    }
    rule->power = integer(1);
    rule->ratio = rope_real_exp(rope_real_multiply(exponent, rule->log_base));
}

void rope_rule_begin(rope_rule *rule, const rope_desc *desc, int32_t set) {
    *rule = (rope_rule){.desc = desc, .left = desc->rotary_dim / 2};
    if (desc->rope_type == ROPE_TYPE_INV_FREQ)
        return;
    rule->log_base = log_base_of(desc);
    rule->scale = inverse(rope_real_of(or_default(desc->factor, 1)));
    if (desc->rope_type == ROPE_TYPE_YARN)
        begin_yarn(rule);
    if (desc->rope_type == ROPE_TYPE_LLAMA3)
        begin_llama3(rule);
    if (desc->rope_type == ROPE_TYPE_LONGROPE)
        rule->list = takes_long(desc, set) ? desc->long_factor : desc->short_factor;
    begin_powers(rule);
}

static rope_real next_power(rope_rule *rule) {
    if (rule->left == 0)
        begin_powers(rule);
    rope_real power = rule->power;
    rule->power = rope_real_multiply(power, rule->ratio);
    rule->left--;
    return power;
}

/* (above omega + below omega scale) per_unit, with above + below the length of the blend: a sum of
 * two that are not negative, so that no scale, however small, is lost. */
static rope_real blend(const rope_rule *rule, rope_real omega, rope_real above, rope_real below) {
    rope_real kept = rope_real_multiply(above, rule->per_unit);
    rope_real part = rope_real_multiply(below, rule->per_unit);
    rope_real scaled = rope_real_multiply(omega, rule->scale);
    if (is_below(part, 0))
        return omega;
    if (is_below(kept, 0))
        return scaled;
    return rope_real_add(rope_real_multiply(kept, omega), rope_real_multiply(part, scaled));
}

static rope_real yarn(const rope_rule *rule, rope_real omega, int32_t pair) {
    rope_real at = integer(pair);
    return blend(rule, omega, rope_real_subtract(rule->high, at),
                 rope_real_subtract(at, rule->low));
}

/* Bands of Llama 3.1 by turns in the original length: many keep, few are divided, between blends;
 * with equal factors those from low_freq_factor on keep. */
static rope_real llama3(const rope_rule *rule, rope_real omega) {
    rope_real length = integer(rule->desc->original_max_position_embeddings);
    rope_real turns = rope_real_multiply(rope_real_multiply(omega, length), rope_real_turn);
    rope_real above = rope_real_subtract(turns, rule->low);
    if (is_below(above, 0))
        return rope_real_multiply(omega, rule->scale);
    if (rule->desc->high_freq_factor == rule->desc->low_freq_factor)
        return omega;
    return blend(rule, omega, above, rope_real_subtract(rule->high, turns));
}

/* int(partial_rotary_factor r / 2) in double, as Transformers counts them. */
static int32_t proportional_pairs(const rope_desc *desc) {
    return (int32_t)(or_default(desc->partial_rotary_factor, 1) * desc->rotary_dim / 2);
}

rope_real rope_rule_next(rope_rule *rule) {
    const rope_desc *desc = rule->desc;
    const int32_t pair = rule->pair++;
    if (desc->rope_type == ROPE_TYPE_INV_FREQ)
        return rope_real_of(desc->inv_freq[pair]);
    rope_real omega = next_power(rule);
    switch (desc->rope_type) {
    case ROPE_TYPE_LINEAR:
        return rope_real_multiply(omega, rule->scale);
    case ROPE_TYPE_YARN:
        return yarn(rule, omega, pair);
    case ROPE_TYPE_LONGROPE:
        return rope_real_divide(omega, rope_real_of(rule->list[pair]));
    case ROPE_TYPE_LLAMA3:
        return llama3(rule, omega);
    case ROPE_TYPE_PROPORTIONAL:
        return pair < proportional_pairs(desc) ? rope_real_multiply(omega, rule->scale)
                                               : integer(0);
    default:
        return omega;
    }
}

/* 1 + m ln(f) / 10, and 1 where f <= 1. */
static rope_real yarn_scale(double factor, double mscale) {
    if (factor <= 1)
        return integer(1);
    rope_real part = rope_real_multiply(rope_real_of(mscale), rope_real_log(rope_real_of(factor)));
    return rope_real_add(integer(1), rope_real_divide(part, integer(10)));
}

static rope_real yarn_attention(const rope_desc *desc) {
    if (desc->mscale == 0)
        return yarn_scale(desc->factor, 1);
    return rope_real_divide(yarn_scale(desc->factor, desc->mscale),
                            yarn_scale(desc->factor, desc->mscale_all_dim));
}

/* sqrt(1 + ln f / ln L0), and 1 where f <= 1. */
static rope_real longrope_attention(const rope_desc *desc, int32_t set) {
    double mscale = takes_long(desc, set) ? desc->long_mscale : desc->short_mscale;
    if (mscale != 0)
        return rope_real_of(mscale);
    int64_t original = desc->original_max_position_embeddings;
    rope_real factor = desc->factor != 0 ? rope_real_of(desc->factor)
                                         : rope_real_ratio(desc->max_position_embeddings, original);
    if (rope_real_compare(factor, integer(1)) <= 0)
        return integer(1);
    rope_real share = rope_real_divide(rope_real_log(factor), rope_real_log(integer(original)));
    rope_real log_square = rope_real_log(rope_real_add(integer(1), share));
    return rope_real_exp(rope_real_multiply(log_square, rope_real_ratio(1, 2)));
}

double rope_rule_attention(const rope_desc *desc, int32_t set) {
    if (desc->attention_factor != 0)
        return desc->attention_factor;
    if (desc->rope_type == ROPE_TYPE_YARN)
        return rope_real_double(yarn_attention(desc));
    if (desc->rope_type == ROPE_TYPE_LONGROPE)
        return rope_real_double(longrope_attention(desc, set));
    return 1;
}

/* log2((2i + 0.4 r) / 1.4 r) / scale_base */
void rope_rule_xpos(const rope_desc *desc, int64_t *rate) {
    const int64_t r = desc->rotary_dim;
    rope_real unit = rope_real_log(integer(2));
    unit = inverse(rope_real_multiply(unit, rope_real_of(desc->xpos_scale_base)));
    for (int64_t i = 0; i < r / 2; i++) {
        uint64_t high, low;
        rope_real power = rope_real_log(rope_real_ratio(10 * i + 2 * r, 7 * r));
        rope_real_fixed(rope_real_multiply(power, unit), 63, &high, &low);
        rate[i] = (int64_t)low;
    }
}
