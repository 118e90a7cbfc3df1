/* cuDNN's attention for calls of one shape. */
#ifndef ROPEKIT_CUDNN_ENGINE_H
#define ROPEKIT_CUDNN_ENGINE_H

#include <ropekit/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Tensors that a call may give, all of dtype but DNN_LSE and DNN_SINKS, which are fp32. */
enum { DNN_Q, DNN_K, DNN_V, DNN_OUT, DNN_LSE, DNN_DOUT, DNN_DQ, DNN_DK, DNN_DV, DNN_TENSORS };

/* What an engine is given: the tensors, where the sequences of each begin (int64, elements, one
 * more than sequences), then lists. */
enum {
    DNN_OFFSETS = DNN_TENSORS,
    DNN_Q_LENGTHS = DNN_OFFSETS + DNN_TENSORS, /* int32, one a sequence */
    DNN_K_LENGTHS,
    DNN_TABLE, /* int32 [sequence, page] */
    DNN_SINKS, /* one a head of q */
    DNN_POINTERS
};

/* What engines are built for. Compared byte by byte: set to 0 before it is filled. */
typedef struct dnn_shape {
    int64_t sequences;
    int64_t q_heads, k_heads;
    int64_t q_tokens, k_tokens; /* most of a sequence */
    int64_t q_total, k_total;   /* > 0: of all sequences together, where they are packed */
    int64_t head_dim, v_head_dim;
    int64_t pages, page_size, table_pages; /* > 0: keys and values lie in pages */
    int64_t stride[DNN_TENSORS][4];        /* over [sequence or page, head, token, dim] */
    int64_t left, right;                   /* keys of the band, as window and window_right are */
    int32_t begins[DNN_TENSORS];           /* 1: sequences begin where offsets say */
    int32_t dtype;                         /* ROPE_F16 or ROPE_BF16 */
    float scale;
    int32_t lengths; /* 1: sequences have the lengths of lists, else q_tokens and k_tokens */
    int32_t alike;   /* 1: each has as many queries as keys */
    int32_t has_lse, has_sinks, is_backward; /* 1 or 0 */
    int32_t nondeterministic;                /* 1: the backward's sums need no fixed order */
} dnn_shape;

typedef struct dnn_engine dnn_engine;

/*
 * Builds an engine on the current device, which takes from milliseconds to seconds and allocates.
 * ROPE_ERROR_UNSUPPORTED with cuDNN's text where it has none, ROPE_ERROR_OUT_OF_MEMORY where memory
 * of the host or of the device does not suffice to tell.
 */
rope_status dnn_engine_create(const dnn_shape *shape, int32_t device, dnn_engine **engine,
                              char *reason);
void dnn_engine_destroy(dnn_engine *engine);

/* Whether cuDNN has an engine for a shape, by the same status; builds none. */
rope_status dnn_engine_probe(const dnn_shape *shape, int32_t device, char *reason);

/* Bytes that a run needs at a multiple of 256. */
size_t dnn_engine_workspace(const dnn_engine *engine);

/* Runs on the current device; thread-safe. at: those of DNN_POINTERS that the shape has. */
rope_status dnn_engine_run(const dnn_engine *engine, void *const at[DNN_POINTERS], void *workspace,
                           void *stream, char *reason);

#ifdef __cplusplus
}
#endif
#endif
