/* The launches of a call of "attention". */
#ifndef ROPEKIT_GPU_ATTENTION_LAUNCH_H
#define ROPEKIT_GPU_ATTENTION_LAUNCH_H

#include "backends/gpu/attention/bind.h"

/* Whether a call whose heads lie in vectors of 16 bytes takes the kernel of one query a sequence,
 * and its parameters but for parts. */
int gpu_decode_fits(const rope_attention_problem *problem, const rope_attention_call *call,
                    gpu_decode_call *decode);

/* Launches what rotates ahead, then what attends. */
gpuError_t gpu_attention_launch(const gpu_attention_state *state, const rope_attention_call *call,
                                void *workspace, void *stream);

#endif
