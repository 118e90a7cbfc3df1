/* The device that a command works on. */
#ifndef ROPEKIT_BENCH_TARGET_H
#define ROPEKIT_BENCH_TARGET_H

#include "bench/options/options.h"

typedef struct target {
    rope_device *device;
    rope_device_info info;
} target;

/* Opens the device of the options and pins their descriptor to its backend; sets the number of
 * OpenMP threads. False after a message. */
bool target_open(target *t, options *o);
void target_close(target *t);
/* The options' descriptor as plans take it: without a frequency rule where angle_mode is table. */
bool target_desc(const options *o, rope_desc *desc);
/* A descriptor without what only a rotation reads. */
rope_desc target_without_rotation(const rope_desc *desc);
/* The rotation of gradients, of a descriptor that is not ROPE_INVERSE. */
rope_desc target_transposed(const rope_desc *desc);
/* Makes the plan of the options' descriptor; false after a message. */
bool target_plan(const options *o, rope_plan **plan);
/* Threads that the library's CPU kernels may use. */
int32_t target_threads(void);

#endif
