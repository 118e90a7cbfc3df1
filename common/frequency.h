/* Frequency rules: from a descriptor to radians a position, in double. */
#ifndef ROPEKIT_COMMON_FREQUENCY_H
#define ROPEKIT_COMMON_FREQUENCY_H

#include <ropekit/rope.h>

/*
 * Checks every field under "frequencies" of desc: what the rule needs is there and in range, and
 * what it would not read is 0. desc is a full-sized copy whose dtype, head_dim, rotary_dim,
 * angle_mode, rope_type, axes, axis_frequency and sections are already checked and have their
 * defaults.
 */
rope_status rope_frequency_check(const rope_desc *desc);

/* Number of frequency lists the plan holds: 2 for longrope per sequence, else 1. */
int32_t rope_frequency_sets(const rope_desc *desc);

/*
 * Computes list `set` (0 first or only, 1 long) of a checked descriptor: rotary_dim/2 values into
 * inv_freq, and the attention factor of forward. With ROPE_LONGROPE_STATIC, _SHORT and _LONG the
 * rule itself says which list it is and set is 0.
 */
void rope_frequency_compute(const rope_desc *desc, int32_t set, double *inv_freq,
                            double *attention_factor);

#endif
