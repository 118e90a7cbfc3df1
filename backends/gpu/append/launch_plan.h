/* Shared by plans of a launch: which problems and calls kernels take, and parameters. */
#ifndef ROPEKIT_GPU_APPEND_LAUNCH_PLAN_H
#define ROPEKIT_GPU_APPEND_LAUNCH_PLAN_H

#include "backends/gpu/append/launch.h"
#include "backends/gpu/geometry.h"
#include "backends/gpu/rope/launch_plan.h"

/* Kernel, grid, block and parameters of a launch. */
typedef struct gpu_append_plan {
    const void *kernel;
    dim3 grid, block;
    size_t shared;      /* bytes of dynamic shared memory */
    void *arguments[3]; /* of the kernel, some in what follows */
    gpu_append_plain_call plain;
    gpu_append_mla_call mla;
    gpu_append_vectors vectors;
} gpu_append_plan;

/* Each plans a launch, or gives 0 where the kernel does not fit the call. */
int gpu_append_plan_rerotate(const gpu_append_state *state, const rope_append_call *call,
                             gpu_append_plan *l);
int gpu_append_plan_mla(const gpu_append_state *state, const rope_append_call *call,
                        gpu_append_plan *l);
int gpu_append_plan_plain(const gpu_append_state *state, const rope_append_call *call,
                          gpu_append_plan *l);
int gpu_append_plan_vector(const gpu_append_state *state, const rope_append_call *call,
                           gpu_append_plan *l);
void gpu_append_plan_generic(const gpu_append_state *state, const rope_append_call *call,
                             gpu_append_plan *l);

/* --- what of a problem and of a call several kernels take (launch_plan.c) --- */

/* Why a problem does not fit, or NULL: types of 16 bits in vectors; exact angles; one pairing;
 * whole heads that are stored as they are or in 8 bits. */
const char *gpu_append_declines_16_bits(const rope_append_problem *p);
const char *gpu_append_declines_angles(const rope_problem *r);
const char *gpu_append_declines_pairing(const rope_problem *r);
const char *gpu_append_declines_whole_heads(const rope_problem *r, const rope_append_steps *s,
                                            int rotates);

/* Whether a tensor can be moved in vectors of GPU_APPEND_V elements. */
int gpu_append_has_vectors(const rope_append_problem *p, const rope_append_call *call, int t);

/* Whether entries of a list over [batch, token] follow each other. */
int gpu_append_is_in_line(const rope_append_call *call, const int64_t *stride);

/* An entry of its ids serves every token. */
int gpu_append_has_one_id(const rope_position_map *map);

/* Exact angles of one rule, where a batch row is a sequence and a token has one position. */
int gpu_append_is_exact(const rope_append_problem *p, const rope_append_call *call);

/* The least power of two that is not below n. */
uint8_t gpu_log2_of(int32_t n);

/* From a token to the next in units of `size`, and what a batch row adds to its tokens' strides. */
int64_t gpu_append_token_stride(const rope_append_call *call, const int64_t *stride, int64_t size,
                                int64_t *batch);

/* A stride of a dimension of `count` entries; *near becomes 0 where 32 bits do not hold it. */
int32_t gpu_near_stride(int64_t stride, int64_t count, int *near);

/* --- parameters in vectors, of vector and rerotate (launch_vector.c) --- */

/* Parameters of a tensor; 0 where its strides are too far. */
int gpu_append_fill_tensor(const rope_append_problem *p, const rope_append_call *call, int t,
                           gpu_append_tensor *v);

/* Parameters that all tensors share. */
void gpu_append_fill_vectors(const rope_append_problem *p, const rope_append_call *call,
                             gpu_append_vectors *v);

/* Sets the kernel's arguments: vectors, problem and call. */
void gpu_append_set_arguments(const rope_append_problem *p, const rope_append_call *call,
                              gpu_append_plan *l);

/* --- parameters of plain and mla (launch_plain.c) --- */

/* Lists that follow each other, and few enough slots. */
int gpu_append_is_plain(const rope_append_problem *p, const rope_append_call *call);

/* Parameters that all tensors share. */
gpu_append_plain_call gpu_append_plain_call_of(const rope_append_problem *p,
                                               const rope_append_call *call);

/* Parameters of each tensor; 0 where one does not fit. */
int gpu_append_fill_operands(const rope_append_problem *p, const rope_append_call *call,
                             gpu_append_plain_call *plain);

int32_t gpu_append_plain_flags(const gpu_append_state *state, const rope_append_call *call,
                               const gpu_append_plan *l);

/* The geometry that the size of a call asks for; deep for norms and 8 bits together, which are
 * bound by instructions. */
int32_t gpu_append_geometry_of(const gpu_append_state *state, const rope_append_call *call,
                               int norm);

/* The largest number up to `most` that divides all of them. */
uint32_t gpu_divisor(const int64_t *numbers, int count, int64_t most);

#endif
