/* Runs of a case of rope_decode, and of the two calls that it stands for. */
#ifndef ROPEKIT_TESTS_DECODE_COMPARE_H
#define ROPEKIT_TESTS_DECODE_COMPARE_H

#include "tests/decode/cases.h"

/* Skips the test where the device has no kernels to compose. */
void decode_required(void);
/* As device_run, with as much workspace as rope_decode_workspace says. graph: 1: by one replay of a
 * graph that holds the call, where the backend has graphs. */
rope_status decode_run(const decode_case *c, const char *kernel, int32_t graph,
                       unsigned char *result);
/* The same by rope_append and then rope_attention, whose kernel is named. */
rope_status decode_run_both(const decode_case *c, const char *kernel, unsigned char *result);

#endif
