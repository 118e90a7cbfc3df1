/* Kernels of "attention_merge", each of (rope_attention_merge_call, head_dim): grid x strides over
 * heads, block x over their elements. */
#ifndef ROPEKIT_GPU_ATTENTION_MERGE_H
#define ROPEKIT_GPU_ATTENTION_MERGE_H

enum { GPU_MERGE_THREADS = 128 };

#ifdef __cplusplus
extern "C" {
#endif

/* The kernels of ROPE_F32, ROPE_F16 and ROPE_BF16, in the order of their numbers. */
extern const void *const gpu_attention_merge_kernels[3];

#ifdef __cplusplus
}
#endif

#endif
