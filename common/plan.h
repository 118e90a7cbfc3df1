/* A plan: an operation, its problem and the kernel chosen for it. */
#ifndef ROPEKIT_COMMON_PLAN_H
#define ROPEKIT_COMMON_PLAN_H

#include <ropekit/backend.h>

struct rope_plan {
    const rope_operation *operation;
    void *problem;
    const rope_backend *backend;
    const rope_candidate *candidate;
    void *kernel;
    int32_t device;
    char name[64];
    char report[1024];
};

/* Whether a plan is one of an operation; an error says of which it is. */
rope_status rope_plan_check(const rope_plan *plan, const rope_operation *operation);

/* As rope_plan_apply, on `stream` unless that is NULL. */
rope_status rope_plan_apply_on(const rope_plan *plan, const void *args, void *workspace,
                               void *stream);

#endif
