/* An operator's arguments, and the call of the library that they stand for. */
#ifndef ROPEKIT_PYTHON_CALL_H
#define ROPEKIT_PYTHON_CALL_H

#include "python/csrc/arguments.h"
#include "python/csrc/inputs.h"
#include "python/csrc/plans.h"

/* q_out and k_out are q and k where they are written in place. */
typedef struct call {
    text_argument config;
    tensor q, k, q_out, k_out; /* a lone tensor is q, whatever its role */
    inputs inputs;
    int in_place;
} call;

/* Checks, finds the plan, makes q_out and k_out unless in place, and rotates. Returns NULL or what
 * is wrong, valid until the thread's next call; nothing is written then. */
const char *call_run(call *c);

/* Gives back q_out and k_out, as far as they were made. */
void call_release_results(const call *c);

#endif
