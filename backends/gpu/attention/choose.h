/* Which kernels attend in a call of "attention". A candidate was chosen before, by name, by a table
 * (common/tuning.c) or in the order of candidates.c; here it chooses among its own kernels. */
#ifndef ROPEKIT_GPU_ATTENTION_CHOOSE_H
#define ROPEKIT_GPU_ATTENTION_CHOOSE_H

#include "backends/gpu/attention/bind.h"

/* Kernels that attend, and those that join what splits gave. Each is a function template
 * gpu_attention_NAME, by which name users know it: "cuda:decode". */
enum {
    GPU_ATTEND_NONE,
    GPU_ATTEND_GENERIC,
    GPU_ATTEND_GENERIC_FEW, /* generic, in blocks of fewer rows */
    GPU_ATTEND_WIDE_HEADS,
    GPU_ATTEND_LATENT, /* wide_heads of few queries, by the instructions of sm_90a */
    GPU_ATTEND_TILES,
    GPU_ATTEND_PROMPT,
    GPU_ATTEND_SM90, /* prompt, by the instructions of sm_90a */
    GPU_ATTEND_SPLITS,
    GPU_ATTEND_DECODE,
    GPU_ATTEND_KERNELS,
    GPU_JOIN_SPLITS = GPU_ATTEND_KERNELS,
    GPU_JOIN_DECODE
};

/* A kernel as a plan has it. */
typedef struct gpu_attention_function {
    const void *symbol; /* or NULL: the plan has none */
    int64_t rows;       /* of a block */
    int32_t shared;     /* bytes of dynamic shared memory */
} gpu_attention_function;

gpu_attention_function gpu_attention_function_of(const gpu_attention_state *state, int32_t kernel);

/* A launch of a kernel that attends. */
typedef struct gpu_attending {
    int32_t kernel; /* GPU_ATTEND_ */
    int32_t fits;   /* GPU_TILE_ */
    int32_t parts;  /* keys and values are gathered ahead of it, part by part */
    int64_t x, y;   /* blocks; decode has others */
} gpu_attending;

typedef struct gpu_attention_choice {
    gpu_attending few;  /* attends to sequences of few queries, in splits of their keys ... */
    int32_t ones;       /* ... but those of one query, which GPU_ATTEND_DECODE has */
    gpu_attending rest; /* attends to all sequences that `few` does not */
    int32_t join;       /* GPU_JOIN_ or GPU_ATTEND_NONE */
    int32_t gathers;    /* all attend to what is gathered, part by part; each chooses again */
    gpu_attention_parts parts; /* but for where they are */
} gpu_attention_choice;

/* Chooses for a call with some query, whose q.out and k.out, where they are not NULL, hold what
 * rotates ahead. */
void gpu_attention_choose(const gpu_attention_state *state, const rope_attention_call *call,
                          gpu_attention_choice *choice);

/* Whether values are the first elements of keys. */
int gpu_attention_are_same(const rope_attention_problem *problem, const rope_attention_call *call);

/* Whether the queries of a call without q.out, whose keys are rotated in k.out, are rotated by what
 * attends. */
int gpu_attention_rotates_queries(const gpu_attention_state *state,
                                  const rope_attention_call *call);

/* The name of what attends, with its backend and with "+" between two; NULL: nothing does. */
const char *gpu_attention_name(const gpu_attention_choice *choice);

#endif
