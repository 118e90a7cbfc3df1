/* From the arguments of "decode" to its call. */
#ifndef ROPEKIT_COMMON_DECODE_CALL_H
#define ROPEKIT_COMMON_DECODE_CALL_H

#include <ropekit/backend.h>

/* As rope_operation.read. */
rope_status rope_decode_call_read(const void *problem, const void *args, void *call, void **stream,
                                  int *empty);

/* The caller's struct, of any version, or its copy in `full`; NULL after an error. */
const rope_decode_args *rope_decode_args_read(const void *given, rope_decode_args *full,
                                              rope_status *status);

#endif
