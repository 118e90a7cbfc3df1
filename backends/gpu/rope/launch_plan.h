/* Shared by plans of a launch: a call's shape, and grids of rows. */
#ifndef ROPEKIT_GPU_ROPE_LAUNCH_PLAN_H
#define ROPEKIT_GPU_ROPE_LAUNCH_PLAN_H

#include "backends/gpu/geometry.h"
#include "backends/gpu/rope/launch.h"

/* Kernel, grid, block and parameters of a launch. */
typedef struct gpu_rope_plan {
    const void *kernel;
    dim3 grid, block;
    size_t shared;      /* bytes of dynamic shared memory */
    int32_t q_units;    /* as kernels' parameters have it */
    int32_t slab;       /* rows of one z of the grid */
    void *arguments[3]; /* of the kernel, some in what follows */
    gpu_plain_call plain;
    gpu_window_call window;
    gpu_vector_call vector;
    int32_t staged;
} gpu_rope_plan;

/* The shape of a call: everything that more than one kernel asks. */
typedef struct gpu_rope_shape {
    int64_t rows;       /* tokens of all batch rows */
    int64_t pairs_each; /* pairs of a multiprocessor */
    int32_t size;       /* bytes of an element */
    int32_t pairing;    /* GPU_ */
    int32_t set;        /* of frequencies that every token takes; negative: the device must look */
    int tokens_in_line; /* batch rows of q and k follow each other as tokens do */
    int ids_in_line;    /* batch rows of ids follow each other, or there is one batch row */
    int one_position;   /* a token has one, its index or an id of a dense list, plus an offset */
    int near;           /* 32 bits hold strides in bytes from a thread's first head to its last */
} gpu_rope_shape;

/* Each plans the launch of its kernels, or gives 0 where they do not fit the call. */
int gpu_plan_plain(const gpu_rope_state *state, const rope_call *call, const gpu_rope_shape *s,
                   gpu_rope_plan *l);
int gpu_plan_window(const gpu_rope_state *state, const rope_call *call, const gpu_rope_shape *s,
                    gpu_rope_plan *l);
int gpu_plan_vector(const gpu_rope_state *state, const rope_call *call, const gpu_rope_shape *s,
                    gpu_rope_plan *l);
void gpu_plan_generic(const gpu_rope_state *state, const rope_call *call, const gpu_rope_shape *s,
                      gpu_rope_plan *l);

/* Elements of a thread's vector and heads of a thread, as gpu_shape of fragment.h has them. */
int32_t gpu_vector_of(int32_t size, int32_t geometry);
int32_t gpu_heads_of(int32_t size, int32_t geometry);

/* From a token to the next; strides of dimensions with one entry count nothing. */
int64_t gpu_token_stride(const rope_call *call, const int64_t stride[4]);

/* GPU_INTERLEAVED and its siblings. */
int32_t gpu_pairing_of(const rope_problem *p);

/* Whether every vector of `vector` elements that a head has lies at a multiple of its size. */
int gpu_rope_is_aligned(const rope_problem *p, const rope_call *call, int32_t vector);

/* q or k with near strides. */
gpu_operand gpu_rope_operand_of(const rope_problem *p, const rope_call *call, int t);

/* Flags that plain and window kernels share. */
int32_t gpu_rope_flags_of(const gpu_rope_state *state, const rope_call *call);

/* Units of a block that has one tensor: as many as leave at most an eighth of the threads idle. */
uint32_t gpu_units_apart(int64_t q, int64_t k, uint32_t most);

/* Rows of a block that has room for so many. */
uint32_t gpu_rows_of_block(uint32_t room, int64_t rows);

/*
 * Grid and block of a plain or window kernel: blocks of units of one tensor along x, of rows along
 * y and z. z takes batch rows, or where all are in line what y cannot. 0 where they are too many.
 */
int gpu_lay_out_rows(const gpu_rope_state *state, const rope_call *call, int32_t geometry,
                     int in_line, gpu_rope_plan *l);

/* The geometry of a vector or window kernel: the widest, from the wanted one down, that exists and
 * that the call's alignment allows; negative where none does. */
int32_t gpu_vector_geometry(const gpu_rope_state *state, const rope_call *call,
                            const gpu_rope_shape *s);

#endif
