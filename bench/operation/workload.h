/* The workload of the operation that the options choose. */
#ifndef ROPEKIT_BENCH_WORKLOAD_H
#define ROPEKIT_BENCH_WORKLOAD_H

#include "bench/workload/workload_set.h"

/* Makes plans, allocates sets of tensors, fills them from the seed and places positions and tables;
 * false after a message. Destroy it either way. */
bool workload_create(workload *w, const options *o, rope_device *device, int64_t sets);
/* Bytes that a call reads, and as many that it writes: those of its tensors; where a call reads and
 * writes different numbers, their mean. */
size_t workload_tensor_bytes(const options *o);
/* Of the products of attention; 0 of other operations. */
double workload_flops(const options *o);
/* Whether outputs replace inputs. */
bool workload_in_place(const options *o);

#endif
