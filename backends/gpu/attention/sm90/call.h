/* A problem and its calls as host code of the kernels for sm_90a sees them. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_CALL_H
#define ROPEKIT_GPU_ATTENTION_SM90_CALL_H

#include "backends/gpu/attention/sm90/kernels.h"
#include "backends/gpu/attention/sm90/map.h"

sm90_view sm90_queries_of(const rope_attention_problem *problem, const rope_attention_call *call);
sm90_view sm90_results_of(const rope_attention_problem *problem, const rope_attention_call *call);

/* Keys or values: of a tensor, or of a cache whose rows are pages. gathered: or sequences. */
sm90_view sm90_view_of(const rope_attention_problem *problem, const rope_attention_call *call,
                       const rope_append_operand *operand, int32_t dim, int gathered);

/* Whether sequences differ by lengths that lie on the device. */
int sm90_depends(const rope_attention_call *call);

/* Whether positions of queries are indices that depend on those lengths. */
int sm90_stands_by_lengths(const rope_attention_call *call);

/* Whether rows of a batch have positions of their own. */
int sm90_has_rows(const rope_attention_call *call);

/* Whether a rotation is one by such angles as a launch computes: exact ones of one axis, of pairs
 * that lie half a window apart in vectors of 16 bytes. */
int sm90_has_angles(const rope_problem *rope);

/* Computes angles of queries. */
gpuError_t sm90_launch_angles(const rope_attention_problem *problem,
                              const rope_attention_call *call, void *angles, int early,
                              gpuStream_t stream);

/* The rotation of queries, or keys that stand alike, by those. */
sm90_rotation sm90_rotation_of(const rope_problem *rope, const rope_attention_call *call,
                               int tensor, void *angles);

/* Vectors of four angles that a token has. */
static inline int64_t sm90_fours_of(const rope_problem *rope) {
    return rope->pairs / 4;
}

/* Maps of queries and keys for latent attention, and keys of a copy; 0: the driver refuses. */
int sm90_latent_maps(const rope_attention_problem *problem, const rope_attention_call *call,
                     CUtensorMap maps[2], int32_t *box);

/* Launches the join of its splits. */
gpuError_t sm90_latent_join(const void *kernel, const rope_attention_problem *problem,
                            const rope_attention_call *call, const gpu_attention_parts *parts,
                            gpuStream_t stream, int early);

/* Whether keys and values of a call are gathered. */
int sm90_gathers(const rope_attention_problem *problem, const rope_attention_call *call);

const void *sm90_kernel_of(const rope_attention_problem *problem, int tall);

/* The kernel of simple calls, or NULL. */
const void *sm90_simple_of(const rope_attention_problem *problem);

/* The kernel of keys in spans, or NULL. */
const void *sm90_span_kernel_of(const rope_attention_problem *problem);

/* Whether some sequence of a call may have spans. */
int sm90_has_spans(const rope_attention_problem *problem, const rope_attention_call *call,
                   int multiprocessors);

/* Spans of a part of a call; most: 0, no sequence has several. */
sm90_spans sm90_spans_of(const rope_attention_problem *problem, const rope_attention_call *whole,
                         const rope_attention_call *part, const gpu_sm90_memory *memory,
                         int multiprocessors);

/* The kernel of norms, or NULL. */
const void *sm90_normed_of(const rope_attention_problem *problem);

sm90_cap sm90_cap_of(const rope_attention_problem *problem);

/* Queries of a sequence from which it has tall tiles, by the heads of the whole call, whatever a
 * part of it has; SM90_FAR: none has. */
int32_t sm90_tall_from(const rope_attention_problem *problem, const rope_attention_call *call);

/* Bytes of a launch's shared memory; depends: on lengths that lie on the device. */
int32_t sm90_shared_of(const rope_attention_problem *problem, int tall, int depends);

/* 0 where there are too many tiles of `rows` rows to count. */
int sm90_count_tiles(const rope_attention_call *call, int32_t rows, sm90_schedule *schedule);

/* Of whatever tall_from. page: sm90_page_of() where keys are read from pages, else 0. */
sm90_schedule sm90_schedule_of(const rope_attention_problem *problem,
                               const rope_attention_call *call, int tall, int32_t page,
                               const int32_t *failed, const gpu_sm90_memory *memory, int splits);

#endif
