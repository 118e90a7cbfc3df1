/* From the caller's arguments to a checked call. */
#ifndef ROPEKIT_COMMON_CALL_H
#define ROPEKIT_COMMON_CALL_H

#include <ropekit/backend.h>

/* Fills call, a rope_call, from args, a rope_args: rope_operation.read of "rope". */
rope_status rope_call_read(const void *problem, const void *args, void *call, void **stream,
                           int *empty);

#endif
