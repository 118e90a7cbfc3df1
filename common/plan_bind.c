/* Kernels bound to a plan, and its report. */
#include "common/log.h"
#include "common/plan.h"

#include <stdio.h>
#include <string.h>

void rope_plan_note(rope_plan *plan, const char *kernel, const char *text) {
    size_t used = strlen(plan->report);
    snprintf(plan->report + used, sizeof plan->report - used, "%s%s %s", used ? "\n" : "", kernel,
             text);
    rope_log(ROPE_LOG_CANDIDATE, "%s %s", kernel, text);
}

rope_status rope_plan_bind(const rope_plan *plan, const rope_backend *backend,
                           const rope_candidate *candidate, rope_bound_kernel *kernel,
                           char *reason) {
    if (candidate->version != plan->operation->version) {
        snprintf(reason, ROPE_REASON_SIZE, "declined: built for version %d of %s; allowed is %d",
                 candidate->version, plan->operation->name, plan->operation->version);
        return ROPE_DECLINED;
    }
    rope_status status = ROPE_OK;
    if (candidate->query)
        status = candidate->query(candidate, plan->problem, plan->device, reason);
    if (status != ROPE_OK)
        return status;
    kernel->kernel = (void *)(uintptr_t)candidate->data;
    if (candidate->bind)
        status = candidate->bind(candidate, plan->problem, plan->device, &kernel->kernel, reason);
    if (status == ROPE_OK) {
        kernel->candidate = candidate;
        kernel->backend = backend;
    }
    return status;
}

void rope_plan_unbind(const rope_bound_kernel *kernel) {
    if (kernel->candidate && kernel->candidate->release)
        kernel->candidate->release(kernel->kernel);
}
