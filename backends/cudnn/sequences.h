/* Kernels around cuDNN's: lists of sequences as it takes them, rows that no key is seen from, and
 * copies that leave out what no sequence has. */
#ifndef ROPEKIT_CUDNN_SEQUENCES_H
#define ROPEKIT_CUDNN_SEQUENCES_H

#include "backends/cudnn/engine.h"

enum { DNN_THREADS = 128 };

/* Kernel dnn_lists_kernel: block x strides over sequences. Lists that are NULL are left out. */
typedef struct dnn_lists {
    rope_attention_problem problem; /* its lists are not read */
    rope_attention_call call;
    int64_t *begin[DNN_TENSORS];    /* element where a sequence begins, and where the last ends */
    int64_t stride[DNN_TENSORS][2]; /* over [row, token] of these */
    int32_t *q_lengths, *k_lengths; /* 0 of what is left out */
    int32_t *fails;                 /* 1: the sequence is left out */
    int32_t *table;                 /* [sequence, page] */
    int64_t table_pages;            /* of a sequence, at most the call's */
    void *shifts; /* sequence_offsets by which "rope" finds the positions of queries */
    float *sinks;
    int32_t skips; /* 1: queries that see no key are left out */
} dnn_lists;

/* Kernel dnn_rows_kernel: block x strides over tokens. */
typedef struct dnn_rows {
    rope_attention_problem problem; /* its lists are not read */
    rope_attention_call call;
    const int32_t *fails; /* or NULL: none */
    const uint16_t *from; /* [row, token, head, dim], contiguous; NULL: nothing is copied */
    uint16_t *to;         /* or NULL */
    int64_t to_stride[4]; /* over [row, token, head, dim] */
    float *lse;           /* -infinity, or the sink, of queries that see no key; or NULL */
    const float *sinks;   /* or NULL */
    int64_t heads, dim;
    int32_t keys;   /* 1: of keys, else of queries */
    int32_t zeroes; /* 1: elements of queries that see no key, and of keys of sequences of which
                       no query sees one, are 0 */
} dnn_rows;

/* Kernel dnn_lse_kernel: block x strides over elements, which it copies. */
typedef struct dnn_lse {
    const float *from;
    float *to;
    int64_t from_stride[3], to_stride[3], size[3]; /* over [batch, token, head] */
} dnn_lse;

#ifdef __cplusplus
extern "C" {
#endif
extern const void *const dnn_lists_kernel, *const dnn_rows_kernel, *const dnn_lse_kernel;
#ifdef __cplusplus
}
#endif
#endif
