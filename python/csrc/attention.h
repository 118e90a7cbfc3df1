/* The arguments of the operators of attention, and the call of the library that they stand for. */
#ifndef ROPEKIT_PYTHON_ATTENTION_H
#define ROPEKIT_PYTHON_ATTENTION_H

#include "python/csrc/arguments.h"
#include "python/csrc/inputs.h"

enum { KEYS, VALUES, STORES };

/* Names as in rope_attention_args. */
typedef struct attention_call {
    text_argument config;
    tensor q, k, v;
    tensor weight[STORES];               /* of norms of q and k */
    tensor cache[STORES], scale[STORES]; /* instead of k and v */
    tensor block_table, sinks, tree_bits;
    int64_t tree_keys, max_seqlen_k; /* 0: not given */
    inputs inputs;
    int wants_lse, wants_rotated;
    int explains;           /* tells which kernel would run, and runs none */
    tensor out, lse;        /* made */
    tensor rotated[STORES]; /* made: q and k as a backward reads them; empty: as they are, or have a
                               norm, of which a backward reads what that read */
} attention_call;

/* Checks, finds the plan, makes results, rotates and attends; with wants_rotated refuses what has
 * no gradient. Returns NULL or what is wrong, valid until the thread's next call. */
const char *attention_run(attention_call *c);

/* Gives back results, as far as they were made. */
void attention_release_results(const attention_call *c);

/* A call, whose q and k are rotated where they have no norm, with its out and lse; and its
 * gradients. */
typedef struct gradient_call {
    attention_call forward;
    tensor dout;
    tensor dq, dk, dv, dsinks; /* made; dsinks empty without sinks */
    tensor dweight[STORES];    /* made, float32; empty without weights */
} gradient_call;

const char *gradient_run(gradient_call *c);
void gradient_release_results(const gradient_call *c);

/* Partial results and what they are joined to. */
typedef struct merge_call {
    tensor parts, parts_lse; /* [part, ...] */
    tensor out, lse;         /* made */
} merge_call;

const char *merge_run(merge_call *c);
void merge_release_results(const merge_call *c);

#endif
