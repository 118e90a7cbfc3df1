/* A plan: the canonical problem, the chosen kernel and the lists that the problem points to. */
#ifndef ROPEKIT_COMMON_PLAN_H
#define ROPEKIT_COMMON_PLAN_H

#include <ropekit/backend.h>

struct rope_plan {
    rope_problem problem;
    const rope_backend *backend;
    const rope_candidate *candidate;
    void *kernel;
    int32_t device;
    void *lists; /* owns what problem points to */
    char name[64];
    char report[1024];
};

#endif
