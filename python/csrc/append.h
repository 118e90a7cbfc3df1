/* The arguments of the operator append, and the call of the library that they stand for. */
#ifndef ROPEKIT_PYTHON_APPEND_H
#define ROPEKIT_PYTHON_APPEND_H

#include "python/csrc/arguments.h"
#include "python/csrc/inputs.h"
#include "python/csrc/plans.h"

enum { PART_Q, PART_K, PART_V, PARTS };

/* Names as in rope_append_args; by part. */
typedef struct append_call {
    text_argument config;
    tensor in[PARTS], out[PARTS]; /* out alone: in place */
    tensor cache[PARTS];          /* [page, slot, head, element], or ... block, element]; no q's */
    tensor weight[PARTS];
    tensor scale[PARTS], scale_out[PARTS]; /* given, or written */
    tensor slots, block_table;
    inputs inputs;
} append_call;

/* Checks, finds the plan, and appends. Returns NULL or what is wrong, valid until the thread's next
 * call; nothing is written then. */
const char *append_run(append_call *c);

#endif
