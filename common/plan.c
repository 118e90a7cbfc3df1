#include "common/plan.h"

#include "common/descriptor.h"
#include "common/log.h"
#include "common/problem.h"
#include "common/registry.h"
#include "common/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void report(rope_plan *plan, const char *candidate, const char *text) {
    size_t used = strlen(plan->report);
    snprintf(plan->report + used, sizeof plan->report - used, "%s%s:%s %s", used ? "\n" : "",
             plan->backend->name, candidate, text);
    rope_log(ROPE_LOG_CANDIDATE, "%s:%s %s", plan->backend->name, candidate, text);
}

static void list_candidates(const rope_operation *operation, char *text, size_t room) {
    text[0] = 0;
    for (int32_t i = 0; i < operation->count; i++) {
        size_t used = strlen(text);
        snprintf(text + used, room - used, "%s%s", i ? ", " : "", operation->candidates[i]->name);
    }
}

/* Those that are not asked, behind the one that accepted. */
static void report_rest(rope_plan *plan, int32_t chosen) {
    const rope_operation *rotate = plan->backend->operation[ROPE_OPERATION_ROTATE];
    for (int32_t i = chosen + 1; i < rotate->count; i++) {
        const rope_candidate *candidate = rotate->candidates[i];
        report(plan, candidate->name, candidate->on_request ? "on request" : "not needed");
    }
}

/* A forced name must exist and accept; otherwise the first that accepts wins. */
static rope_status bind_kernel(rope_plan *plan, const char *forced) {
    const rope_operation *rotate = plan->backend->operation[ROPE_OPERATION_ROTATE];
    for (int32_t i = 0; i < rotate->count; i++) {
        const rope_candidate *candidate = rotate->candidates[i];
        if (forced ? strcmp(forced, candidate->name) != 0 : candidate->on_request)
            continue;
        char reason[ROPE_REASON_SIZE] = "";
        rope_status status =
            candidate->bind(candidate, &plan->problem, plan->device, &plan->kernel, reason);
        report(plan, candidate->name, status == ROPE_OK ? "accepted" : reason);
        if (status == ROPE_OK) {
            plan->candidate = candidate;
            snprintf(plan->name, sizeof plan->name, "%s:%s", plan->backend->name, candidate->name);
            if (!forced)
                report_rest(plan, i);
            return ROPE_OK;
        }
        if (status != ROPE_DECLINED)
            return rope_fail(status, "%s:%s: %s", plan->backend->name, candidate->name, reason);
    }
    if (forced && !plan->report[0]) {
        char names[300];
        list_candidates(rotate, names, sizeof names);
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "kernel is \"%.60s\"; allowed with backend %s is NULL or any of %s",
                         forced, plan->backend->name, names);
    }
    return rope_fail(ROPE_ERROR_UNSUPPORTED, "every kernel declined: %.400s", plan->report);
}

rope_status rope_plan_create(const rope_desc *desc, rope_plan **plan) {
    if (!plan)
        return rope_fail_null("plan");
    rope_desc full;
    rope_status status = rope_descriptor_read(desc, &full);
    const rope_backend *backend;
    if (status == ROPE_OK)
        status = rope_registry_choose(full.backend, full.device, &backend);
    if (status != ROPE_OK)
        return status;
    rope_plan *made = calloc(1, sizeof *made);
    if (!made)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for a plan");
    made->backend = backend;
    made->device = full.device;
    status = rope_problem_create(&full, &made->problem, &made->lists);
    if (status == ROPE_OK)
        status = bind_kernel(made, full.kernel);
    if (status != ROPE_OK) {
        rope_plan_destroy(made);
        return status;
    }
    rope_log(ROPE_LOG_CHOICE, "plan uses %s", made->name);
    *plan = made;
    return ROPE_OK;
}

void rope_plan_destroy(rope_plan *plan) {
    if (!plan)
        return;
    if (plan->candidate && plan->candidate->release)
        plan->candidate->release(plan->kernel);
    free(plan->lists);
    free(plan);
}

const char *rope_plan_kernel(const rope_plan *plan) {
    return plan ? plan->name : NULL;
}

const char *rope_plan_report(const rope_plan *plan) {
    return plan ? plan->report : NULL;
}
