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
    int attended; /* attention follows: q needs no q_out, and slots may have a block table beside */
} append_call;

/* Checks, finds the plan, and appends. Returns NULL or what is wrong, valid until the thread's next
 * call; nothing is written then. */
const char *append_run(append_call *c);

/* The tensor that the others are compared with, and its name; NULL where none is given. */
const tensor *append_lead(const append_call *c, const char **name);

/* Whether a part has no tensor, as its cache is the first elements of k's: attention's values. */
int append_shares_cache(const append_call *c, int part);

/* Checks that need no plan; *position_dtype is 0 where index tensors are of two types. */
const char *append_check(const append_call *c, const tensor *lead, const char *lead_name,
                         int32_t *position_dtype);

plan_key append_key(const append_call *c, const tensor *lead, int32_t position_dtype);

/* Fills args. */
const char *append_put(const append_call *c, const tensor *lead, const plan_entry *entry,
                       rope_append_args *args);

#endif
