/*
 * A frequency rule as real numbers, pair by pair: what the descriptor's doubles say, not yet
 * rounded. docs/numerics.md has each rule and its source.
 */
#ifndef ROPEKIT_COMMON_FREQUENCY_RULE_H
#define ROPEKIT_COMMON_FREQUENCY_RULE_H

#include "common/frequency/real.h"

#include <ropekit/rope.h>

typedef struct rope_rule {
    const rope_desc *desc;
    const double *list;     /* longrope's factors, or NULL */
    int32_t pair;           /* that rope_rule_next gives */
    int32_t axis, left;     /* with restart: the next section, and pairs left in this one */
    rope_real log_base;     /* ln of what is raised to -2i/r */
    rope_real ratio, power; /* from a pair to the next, and of the next pair */
    rope_real scale;        /* 1 / factor */
    rope_real low, high;    /* yarn, llama3: where blending begins and ends */
    rope_real per_unit;     /* 1 / (high - low), or 0 where they are equal */
} rope_rule;

/*
 * Begins list `set` (0 first or only, 1 long) of a checked descriptor, which outlives the rule.
 * With ROPE_LONGROPE_STATIC, _SHORT and _LONG the descriptor says which list it is and set is 0.
 */
void rope_rule_begin(rope_rule *rule, const rope_desc *desc, int32_t set);

/* Radians a position of the next of rotary_dim / 2 pairs. */
rope_real rope_rule_next(rope_rule *rule);

/* The attention factor of forward, rounded to nearest. */
double rope_rule_attention(const rope_desc *desc, int32_t set);

/* The base of the powers, rounded to nearest; infinite beyond the largest double. */
double rope_rule_base(const rope_desc *desc);

/* XPos: log2 of the scale a position of each pair, times 2^63, rounded to nearest. */
void rope_rule_xpos(const rope_desc *desc, int64_t *rate);

#endif
