/* Random numbers of the generator: splitmix64 (Steele, Lea and Flood 2014), one stream a case. */
#ifndef ROPEKIT_TESTS_RANDOM_H
#define ROPEKIT_TESTS_RANDOM_H

#include <stdint.h>

typedef struct test_random {
    uint64_t state;
} test_random;

static inline uint64_t random_bits(test_random *r) {
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* The stream of case `index` under a seed. */
static inline test_random random_stream(uint64_t seed, int64_t index) {
    test_random r = {seed ^ 0x6a09e667f3bcc909u};
    r.state = random_bits(&r) + (uint64_t)index;
    r.state = random_bits(&r);
    return r;
}

/* In low..high, both included. */
static inline int64_t random_between(test_random *r, int64_t low, int64_t high) {
    return low + (int64_t)(random_bits(r) % ((uint64_t)(high - low) + 1));
}

/* In [low, high). */
static inline double random_real(test_random *r, double low, double high) {
    return low + (high - low) * (double)(random_bits(r) >> 11) * 0x1p-53;
}

/* True in `percent` of 100 calls. */
static inline int random_chance(test_random *r, int percent) {
    return random_between(r, 1, 100) <= percent;
}

/* Of either sign, with a magnitude below 2^bits whose logarithm is spread evenly. */
static inline int64_t random_signed(test_random *r, int bits) {
    int64_t shift = 64 - random_between(r, 1, bits);
    int64_t magnitude = (int64_t)(random_bits(r) >> shift);
    return random_chance(r, 50) ? magnitude : -magnitude;
}

/* 0..count - 1 in any order. */
static inline void random_order(test_random *r, int64_t *list, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        list[i] = i;
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t j = random_between(r, 0, i), at = list[i];
        list[i] = list[j];
        list[j] = at;
    }
}

#endif
