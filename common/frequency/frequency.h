/* The fields of a descriptor that belong to its frequency rule. */
#ifndef ROPEKIT_COMMON_FREQUENCY_FREQUENCY_H
#define ROPEKIT_COMMON_FREQUENCY_FREQUENCY_H

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

#endif
