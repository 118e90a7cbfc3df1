/* A plan: an operation, its problem and the kernels chosen for it. */
#ifndef ROPEKIT_COMMON_PLAN_H
#define ROPEKIT_COMMON_PLAN_H

#include "common/tuning.h"

#include <ropekit/backend.h>

/* A candidate that accepted, and what it prepared. */
typedef struct rope_bound_kernel {
    const rope_candidate *candidate;
    const rope_backend *backend; /* of the candidate */
    void *kernel;
    char name[64]; /* "backend:kernel" */
} rope_bound_kernel;

/* Kernels among which calls choose. */
typedef struct rope_plan_tuning {
    rope_tuning table;
    rope_bound_kernel
        kernels[ROPE_TUNED_KERNELS]; /* of its names; without a candidate: the first */
} rope_plan_tuning;

/* What an operation does around the kernels of a plan. */
typedef struct rope_around {
    /* bytes: from those of the kernels to all. */
    rope_status (*workspace)(const void *problem, const void *bounds, size_t *bytes);
    rope_status (*run)(const rope_plan *plan, const void *call, void *workspace, void *stream);
} rope_around;

struct rope_plan {
    const rope_operation *operation;
    void *problem;
    const rope_backend *backend;
    rope_candidate composed;   /* of the operation, on the backend; without a name: none */
    rope_bound_kernel first;   /* that accepted */
    rope_bound_kernel last;    /* composed: runs what first does not; or without a candidate */
    const rope_around *around; /* or NULL */
    const rope_shape *shape;   /* or NULL: nothing tells calls apart */
    rope_plan_tuning *tuning;  /* or NULL: calls take the first */
    int32_t device;
    char name[160]; /* of all kernels */
    char report[1024];
};

/* Whether a plan is one of an operation; an error says of which it is. */
rope_status rope_plan_check(const rope_plan *plan, const rope_operation *operation);

/* As rope_plan_make; without a name of a kernel calls choose by the table that rope_tuning_load
 * finds for `file`. around: or NULL. */
rope_status rope_plan_make_tuned(const rope_operation *operation, void *problem,
                                 const rope_choice *choice, const rope_shape *shape,
                                 const char *file, const rope_around *around, rope_plan **plan);

/* As rope_plan_make, of an operation that every backend has by others: `composed`, a copy of which
 * has the backend as its data, is asked behind the backend's candidates. A name that none of them
 * has is for it to read. */
rope_status rope_plan_make_composed(const rope_operation *operation, void *problem,
                                    const rope_choice *choice, const rope_candidate *composed,
                                    rope_plan **plan);

/* Asks a backend's candidate, then has it prepare its kernel. */
rope_status rope_plan_bind(const rope_plan *plan, const rope_backend *backend,
                           const rope_candidate *candidate, rope_bound_kernel *kernel,
                           char *reason);
void rope_plan_unbind(const rope_bound_kernel *kernel);
/* Appends a line to the report, and to the log. */
void rope_plan_note(rope_plan *plan, const char *kernel, const char *text);

/* Reads a table, and has kernels prepared that it names; plan->tuning stays NULL where it names no
 * other than the first. */
rope_status rope_plan_tune(rope_plan *plan, const char *file);
void rope_plan_tuning_release(rope_plan *plan);

/* The kernel of a call. */
const rope_bound_kernel *rope_plan_kernel_for(const rope_plan *plan, const void *call);

/* Runs a call, already read. */
rope_status rope_plan_run(const rope_plan *plan, const void *call, void *workspace, void *stream);

/* The same without what is around: by its kernel, or by the first, or by the last, where the one
 * before does not take it or its workspace. */
rope_status rope_plan_run_kernels(const rope_plan *plan, const void *call, void *workspace,
                                  void *stream);

/* What the kernel that takes every call would return of one before it writes anything. */
rope_status rope_plan_check_call(const rope_plan *plan, const void *call, void *workspace,
                                 void *stream);

/* Names what runs a call, already read. */
const char *rope_plan_name_of(const rope_plan *plan, const void *call);

/* As rope_plan_apply, on `stream` unless that is NULL. */
rope_status rope_plan_apply_on(const rope_plan *plan, const void *args, void *workspace,
                               void *stream);

#endif
