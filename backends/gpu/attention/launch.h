/* The launches of a call of "attention". */
#ifndef ROPEKIT_GPU_ATTENTION_LAUNCH_H
#define ROPEKIT_GPU_ATTENTION_LAUNCH_H

#include "backends/gpu/attention/bind.h"
#include "backends/gpu/attention/sm90.h"

/* Whether a call whose heads lie in vectors of 16 bytes takes the kernel of one query a sequence.
 */
int gpu_decode_fits(const rope_attention_problem *problem, const rope_attention_call *call);

/* That kernel's parameters. */
gpu_decode_call gpu_decode_call_of(const rope_attention_problem *problem,
                                   const rope_attention_call *call,
                                   const gpu_attention_parts *parts);

/* Launches what rotates ahead, then what attends. norms: or NULL. */
gpuError_t gpu_attention_launch(const gpu_attention_state *state, const rope_attention_call *call,
                                const gpu_sm90_norms *norms, void *workspace, void *stream);

/* Whether it takes these norms. */
int gpu_attention_normalises(const gpu_attention_state *state, const rope_attention_call *call,
                             const gpu_sm90_norms *norms);

/* As rope_candidate.kernel_of. */
const char *gpu_attention_kernel_of(const void *kernel, const void *call);

#endif
