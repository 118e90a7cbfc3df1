/* From the caller's arguments to a checked call. */
#ifndef ROPEKIT_COMMON_CALL_H
#define ROPEKIT_COMMON_CALL_H

#include "common/plan.h"

/* Fills call; *empty is 1 when there is nothing to write. Writes no memory of the caller. */
rope_status rope_call_read(const rope_plan *plan, const rope_args *args, rope_call *call,
                           int *empty);

#endif
