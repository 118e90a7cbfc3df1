/* Which kernel a call takes, and over which grid: nanoseconds of integer arithmetic. */
#ifndef ROPEKIT_GPU_GEOMETRY_H
#define ROPEKIT_GPU_GEOMETRY_H

#include <gpu_alias.h>

#include <stdatomic.h>

#include "common/gpu/kernels.h"

/* A problem bound to a device: what run is given. */
typedef struct gpu_bound {
    rope_problem problem; /* its lists lie on the device */
    void *lists;
    const gpu_rotate_kernels *kernels;
    int32_t device;
    int32_t multiprocessors;
    int32_t early;    /* launches may begin before the one ahead of them has ended */
    int32_t geometry; /* a forced GPU_ geometry; GPU_BY_SIZE; or GPU_GENERIC */
    int32_t plain;    /* calls may take a plain kernel */
    int32_t window;   /* or a window kernel */
    atomic_int asked; /* the runtime was asked about a call's memory */
} gpu_bound;

enum { GPU_BY_SIZE = -1, GPU_GENERIC = -2 };

/* What a kernel is given. */
enum { GPU_PLAIN_ARGUMENTS, GPU_WINDOW_ARGUMENTS, GPU_VECTOR_ARGUMENTS };

/* A launch of a plain, window or vector kernel. */
typedef struct gpu_launch {
    const void *kernel;
    dim3 grid, block;
    size_t shared;           /* bytes of dynamic shared memory */
    int32_t q_units, tokens; /* as in gpu_operands and gpu_vector_call */
    int32_t slab;            /* as in gpu_plain_call */
    int32_t arguments;       /* GPU_..._ARGUMENTS: of these alone, or of problem, call and vector */
    gpu_plain_call plain;
    gpu_window_call window;
    gpu_vector_call vector;
} gpu_launch;

/* Why no call of this problem takes a plain, a window or a vector kernel; NULL where some may. */
const char *gpu_plain_declines(const rope_problem *problem);
const char *gpu_window_declines(const rope_problem *problem);
const char *gpu_vector_declines(const rope_problem *problem);

/* The widest geometry of a vector or window kernel, from the wanted one down, that exists and that
 * the call's alignment allows; negative where none does. */
int32_t gpu_vector_geometry(const gpu_bound *bound, const rope_call *call, int32_t pairing);

/* 0 where pointers or strides of this call, or its size, are not for a plain kernel. */
int gpu_plain_plan(const gpu_bound *bound, const rope_call *call, gpu_launch *launch);

/* The same for window kernels and for vector kernels. */
int gpu_window_plan(const gpu_bound *bound, const rope_call *call, gpu_launch *launch);
int gpu_vector_plan(const gpu_bound *bound, const rope_call *call, gpu_launch *launch);

#endif
