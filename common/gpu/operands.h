/* A call's operands as kernels see them. */
#ifndef ROPEKIT_GPU_OPERANDS_H
#define ROPEKIT_GPU_OPERANDS_H

#include "common/gpu/geometry.h"

/* Bytes of an element. */
int32_t gpu_size_of(const rope_problem *problem);

/* Elements of a thread's vector and heads of a thread, as gpu_shape of vector.h has them. */
int32_t gpu_vector_of(const rope_problem *problem, int32_t geometry);
int32_t gpu_heads_of(const rope_problem *problem, int32_t geometry);

/* A GPU_ pairing. */
int32_t gpu_pairing_of(const rope_problem *problem);

/* Whether every vector of `vector` elements that a head has lies at a multiple of its size. */
int gpu_is_aligned(const rope_problem *problem, const rope_call *call, int32_t vector);

/* Elements from a token to the next; strides of dimensions with one entry count nothing. */
int64_t gpu_token_stride(const rope_call *call, const int64_t stride[4]);

/* Whether batch rows of q and k follow each other as tokens do. */
int gpu_has_tokens_in_line(const rope_call *call);

/* Pairs of a call a multiprocessor. */
int64_t gpu_pairs_each(const gpu_bound *bound, const rope_call *call);

/* Which set of frequencies every token of the call takes; negative where the device must look. */
int gpu_set_of(const rope_problem *problem, const rope_call *call);

/* Whether 32 bits hold an operand's strides in bytes, and from a thread's first head to its last.
 */
int gpu_is_near(const rope_problem *problem, const rope_call *call, const int64_t stride[4]);

/* q or k, whose strides are near. */
gpu_plain_operand gpu_plain_operand_of(const rope_problem *problem, const rope_call *call, int t);

gpu_operands gpu_operands_of(const rope_problem *problem, const rope_call *call, int32_t q_units);

#endif
