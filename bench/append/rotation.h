/* rope_apply of as many bytes as a call of "append" moves, which is timed beside it. */
#ifndef ROPEKIT_BENCH_APPEND_ROTATION_H
#define ROPEKIT_BENCH_APPEND_ROTATION_H

#include "bench/append/set.h"

/* Tokens of a call that has it: those of a decode step, which takes little more than its launch. */
enum { APPEND_ROTATION_TOKENS = 256 };

/* Adds it over every set: the call's rotation, of whole contiguous heads from where a copy reads to
 * where it writes. Leaves it out where keys move, nothing rotates, tokens are many or the bytes are
 * not those of whole heads. False after a message. */
bool append_add_rotation(workload *w);

#endif
