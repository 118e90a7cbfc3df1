/* The workspace of a call of "attention": its parts. */
#ifndef ROPEKIT_GPU_ATTENTION_WORKSPACE_H
#define ROPEKIT_GPU_ATTENTION_WORKSPACE_H

#include "backends/gpu/attention/bind.h"
#include "backends/gpu/attention/sizes.h"

typedef struct gpu_attention_layout {
    size_t failed;   /* where an int32 of each sequence begins */
    size_t keys;     /* where rotated keys begin, [row, key, head, dim] */
    size_t queries;  /* where rotated queries begin, [row, query, head, dim] */
    size_t parts;    /* where results of splits begin */
    size_t tickets;  /* where those of sm90 begin */
    size_t angles;   /* where its angles begin, [row, query] */
    size_t gathered; /* where keys and values that are gathered begin */
    size_t spans;    /* where sums of its spans of keys begin */
    size_t bytes;    /* of all */
} gpu_attention_layout;

/* 0 where bytes overflow. A call that has k.out needs no room for keys, nor for queries if q.out.
 */
int gpu_attention_layout_of(const gpu_attention_state *state, const gpu_attention_sizes *sizes,
                            int has_k_out, int has_q_out, gpu_attention_layout *layout);

/* Whether all sequences are read in splits: they have at most gpu_split_queries(). */
int gpu_attention_few(const gpu_attention_state *state, const gpu_attention_sizes *sizes);

/* Whether queries of a call without q.out are rotated ahead, not by the kernel that attends. */
int gpu_attention_rotates_ahead(const gpu_attention_state *state, const gpu_attention_sizes *sizes);

/* As rope_candidate.workspace. */
rope_status gpu_attention_workspace(const void *problem, const void *kernel, const void *bounds,
                                    size_t *bytes);

/* Whether a call was given the workspace that it needs, an error by name where not. */
rope_status gpu_attention_check_workspace(const gpu_attention_state *state,
                                          const rope_attention_call *call, const void *workspace);

#endif
