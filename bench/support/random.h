/* Reproducible random numbers: SplitMix64 (Steele, Lea and Flood, 2014). */
#ifndef ROPEKIT_BENCH_RANDOM_H
#define ROPEKIT_BENCH_RANDOM_H

#include <stdint.h>

static inline uint64_t random_bits(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* A multiple of 2^-23 in [-1, 1), exact in fp32. */
static inline double random_unit(uint64_t *state) {
    return (double)(int64_t)(random_bits(state) >> 40) * 0x1p-23 - 1.0;
}

/* An integer in 0..most. */
static inline int64_t random_below(uint64_t *state, int64_t most) {
    return most == INT64_MAX ? (int64_t)(random_bits(state) >> 1)
                             : (int64_t)(random_bits(state) % ((uint64_t)most + 1));
}

#endif
