/* The candidate of "decode" that every backend has: its kernels of append and of attention. */
#ifndef ROPEKIT_COMMON_DECODE_COMPOSED_H
#define ROPEKIT_COMMON_DECODE_COMPOSED_H

#include <ropekit/backend.h>

/* A problem as the library makes it, with what choices it leaves to attention's plan. */
typedef struct rope_decode_own {
    rope_decode_problem problem;
    const char *kernel, *tuning; /* or NULL; the caller's, read while the plan is made */
} rope_decode_own;

/* Binds to the backend that `data` of a copy of it is. */
extern const rope_candidate rope_decode_composed;

#endif
