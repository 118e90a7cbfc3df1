/* The arguments of the operator decode, and the call of the library that they stand for. */
#ifndef ROPEKIT_PYTHON_DECODE_H
#define ROPEKIT_PYTHON_DECODE_H

#include "python/csrc/append.h"
#include "python/csrc/attention.h"

/* What both read is the append's: q, caches, table and inputs; attention has masks, and makes out.
 */
typedef struct decode_call {
    append_call append;
    attention_call attention;
    int64_t max_seqlen_q; /* 0: not given */
    tensor into;          /* what receives the result in place of a new tensor */
} decode_call;

/* Checks, finds the plan, makes out, appends and attends. Returns NULL or what is wrong, valid
 * until the thread's next call; nothing is written then. */
const char *decode_run(decode_call *c);

void decode_release_results(const decode_call *c);

#endif
