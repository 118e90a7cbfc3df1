/* Names and sizes of dtypes. */
#ifndef ROPEKIT_BENCH_DTYPE_H
#define ROPEKIT_BENCH_DTYPE_H

#include <stddef.h>
#include <stdint.h>

/* As in "bf16". */
const char *dtype_name(int32_t dtype);
/* Bytes of an element. */
size_t dtype_bytes(int32_t dtype);

#endif
