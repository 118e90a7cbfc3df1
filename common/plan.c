#include "common/plan.h"

#include "common/candidate.h"
#include "common/log.h"
#include "common/registry.h"
#include "common/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void report(rope_plan *plan, const char *candidate, const char *text) {
    char name[64];
    snprintf(name, sizeof name, "%s:%s", plan->backend->name, candidate);
    rope_plan_note(plan, name, text);
}

static const rope_candidate *candidate_at(const rope_plan *plan, int32_t index) {
    return rope_candidate_of(plan->backend, plan->operation->name, index);
}

static void list_candidates(const rope_plan *plan, char *text, size_t size) {
    const rope_candidate *candidate;
    size_t used = 0;
    text[0] = 0;
    for (int32_t i = 0; (candidate = candidate_at(plan, i)) && used < size; i++)
        used +=
            (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", candidate->name);
}

/* Those that are not asked, behind the one that accepted. */
static void report_rest(rope_plan *plan, int32_t chosen) {
    const rope_candidate *candidate;
    for (int32_t i = chosen + 1; (candidate = candidate_at(plan, i)); i++)
        report(plan, candidate->name, candidate->on_request ? "on request" : "not needed");
}

static const char *accepted(const rope_candidate *candidate) {
    return candidate->numerics == ROPE_BITWISE ? "accepted, bitwise" : "accepted, bounded";
}

/* ROPE_DECLINED where the candidate does. */
static rope_status bind(rope_plan *plan, const rope_candidate *candidate,
                        rope_bound_kernel *kernel) {
    char reason[ROPE_REASON_SIZE] = "";
    const rope_status status = rope_plan_bind(plan, plan->backend, candidate, kernel, reason);
    report(plan, candidate->name, status == ROPE_OK ? accepted(candidate) : reason);
    if (status == ROPE_OK)
        snprintf(kernel->name, sizeof kernel->name, "%s:%s", plan->backend->name, candidate->name);
    return status == ROPE_OK || status == ROPE_DECLINED || candidate == &plan->composed
               ? status
               : rope_fail(status, "%s:%s: %s", plan->backend->name, candidate->name, reason);
}

/* Every candidate declined, or none has the name. */
static rope_status fail_all(const rope_plan *plan, const char *forced) {
    if (plan->report[0])
        return rope_fail(ROPE_ERROR_UNSUPPORTED, "every kernel declined: %.400s", plan->report);
    char names[300];
    list_candidates(plan, names, sizeof names);
    if (!names[0])
        return rope_fail(ROPE_ERROR_UNSUPPORTED, "backend %s has no kernel for the operation %s",
                         plan->backend->name, plan->operation->name);
    return rope_fail(ROPE_ERROR_INVALID_VALUE,
                     "kernel is \"%.60s\"; allowed with backend %s is NULL or any of %s",
                     forced ? forced : "", plan->backend->name, names);
}

/* Behind a candidate that accepted it is bound for the calls that that one does not take, unless
 * the candidate was named. */
static rope_status choose_composed(rope_plan *plan, const char *forced) {
    const int chosen = plan->first.candidate != NULL;
    if (chosen && forced)
        return ROPE_OK;
    const rope_status status = bind(plan, &plan->composed, chosen ? &plan->last : &plan->first);
    return chosen ? ROPE_OK : status;
}

/* A forced name must exist and accept; otherwise the first that accepts wins. */
static rope_status choose_kernel(rope_plan *plan, const char *forced) {
    const rope_candidate *candidate;
    rope_status status = ROPE_DECLINED;
    for (int32_t i = 0; status == ROPE_DECLINED && (candidate = candidate_at(plan, i)); i++) {
        if (forced ? strcmp(forced, candidate->name) != 0 : candidate->on_request)
            continue;
        status = bind(plan, candidate, &plan->first);
        if (status == ROPE_OK && !forced)
            report_rest(plan, i);
    }
    if (plan->composed.name && (status == ROPE_OK || status == ROPE_DECLINED))
        status = choose_composed(plan, forced);
    snprintf(plan->name, sizeof plan->name, "%s", plan->first.name);
    return status == ROPE_DECLINED ? fail_all(plan, forced) : status;
}

static void release_problem(const rope_operation *operation, void *problem) {
    if (operation->release)
        operation->release(problem);
}

/* What an operation has beside its candidates. */
typedef struct plan_extras {
    const rope_shape *shape; /* with it a table, of `file` */
    const char *file;
    const rope_candidate *composed;
    const rope_around *around;
} plan_extras;

static rope_status make(const rope_operation *operation, void *problem, const rope_choice *choice,
                        const plan_extras *extras, rope_plan **plan) {
    if (!operation)
        return rope_fail_null("operation");
    const rope_backend *backend;
    rope_status status = !plan ? rope_fail_null("plan")
                         : !choice
                             ? rope_fail_null("choice")
                             : rope_registry_choose(choice->backend, choice->device, &backend);
    rope_plan *made = status == ROPE_OK ? calloc(1, sizeof *made) : NULL;
    if (status == ROPE_OK && !made)
        status = rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for a plan");
    if (!made) {
        release_problem(operation, problem);
        return status;
    }
    made->operation = operation;
    made->problem = problem;
    made->backend = backend;
    made->device = choice->device;
    made->shape = extras->shape;
    made->around = extras->around;
    if (extras->composed) {
        made->composed = *extras->composed;
        made->composed.data = backend;
    }
    status = choose_kernel(made, choice->kernel);
    if (status == ROPE_OK && made->shape && !choice->kernel)
        status = rope_plan_tune(made, extras->file);
    if (status != ROPE_OK) {
        rope_plan_destroy(made);
        return status;
    }
    rope_log(ROPE_LOG_CHOICE, "plan uses %s", made->name);
    *plan = made;
    return ROPE_OK;
}

rope_status rope_plan_make(const rope_operation *operation, void *problem,
                           const rope_choice *choice, rope_plan **plan) {
    return make(operation, problem, choice, &(plan_extras){NULL, NULL, NULL, NULL}, plan);
}

rope_status rope_plan_make_tuned(const rope_operation *operation, void *problem,
                                 const rope_choice *choice, const rope_shape *shape,
                                 const char *file, const rope_around *around, rope_plan **plan) {
    return make(operation, problem, choice, &(plan_extras){shape, file, NULL, around}, plan);
}

rope_status rope_plan_make_composed(const rope_operation *operation, void *problem,
                                    const rope_choice *choice, const rope_candidate *composed,
                                    rope_plan **plan) {
    return make(operation, problem, choice, &(plan_extras){NULL, NULL, composed, NULL}, plan);
}

void rope_plan_destroy(rope_plan *plan) {
    if (!plan)
        return;
    rope_plan_tuning_release(plan);
    rope_plan_unbind(&plan->last);
    rope_plan_unbind(&plan->first);
    release_problem(plan->operation, plan->problem);
    free(plan);
}

rope_status rope_plan_check(const rope_plan *plan, const rope_operation *operation) {
    if (!plan)
        return rope_fail_null("plan");
    if (plan->operation != operation)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "plan is one of %s; allowed is one of %s",
                         plan->operation->name, operation->name);
    return ROPE_OK;
}

/* Statuses of a kernel that does not take a call. */
static int declines(rope_status status) {
    return status == ROPE_ERROR_UNSUPPORTED || status == ROPE_ERROR_OVERFLOW ||
           status == ROPE_ERROR_INVALID_VALUE;
}

static rope_status run_by(const rope_plan *plan, const rope_bound_kernel *kernel, const void *call,
                          void *workspace, void *stream) {
    return kernel->candidate->run(plan->problem, kernel->kernel, call, workspace, stream);
}

rope_status rope_plan_run(const rope_plan *plan, const void *call, void *workspace, void *stream) {
    return plan->around ? plan->around->run(plan, call, workspace, stream)
                        : rope_plan_run_kernels(plan, call, workspace, stream);
}

rope_status rope_plan_run_kernels(const rope_plan *plan, const void *call, void *workspace,
                                  void *stream) {
    const rope_bound_kernel *kernel = rope_plan_kernel_for(plan, call);
    rope_status status = run_by(plan, kernel, call, workspace, stream);
    if (declines(status) && kernel != &plan->first)
        status = run_by(plan, &plan->first, call, workspace, stream);
    return declines(status) && plan->last.candidate
               ? run_by(plan, &plan->last, call, workspace, stream)
               : status;
}

rope_status rope_plan_check_call(const rope_plan *plan, const void *call, void *workspace,
                                 void *stream) {
    const rope_bound_kernel *k = &plan->first;
    rope_status (*check)(const void *, const void *, const void *, void *, void *) =
        ROPE_CANDIDATE_FUNCTION(k->backend, k->candidate, check);
    return check ? check(plan->problem, k->kernel, call, workspace, stream) : ROPE_OK;
}

rope_status rope_plan_apply_on(const rope_plan *plan, const void *args, void *workspace,
                               void *stream) {
    _Alignas(16) char call[ROPE_MAX_CALL_SIZE];
    void *named = NULL;
    int empty = 0;
    rope_status status = plan->operation->read(plan->problem, args, call, &named, &empty);
    if (status != ROPE_OK || empty)
        return status;
    return rope_plan_run(plan, call, workspace, stream ? stream : named);
}

rope_status rope_plan_apply(const rope_plan *plan, const void *args, void *workspace) {
    return plan ? rope_plan_apply_on(plan, args, workspace, NULL) : rope_fail_null("plan");
}

static rope_status workspace_of(const rope_plan *plan, const rope_bound_kernel *kernel,
                                const void *bounds, size_t *bytes) {
    const rope_candidate *c = kernel->candidate;
    *bytes = 0;
    return c && c->workspace ? c->workspace(plan->problem, kernel->kernel, bounds, bytes) : ROPE_OK;
}

/* Some kernels keep bytes for every pair of tokens, more than a device may have. */
size_t rope_plan_workspace_most(const rope_plan *plan, const void *bounds, size_t first) {
    const rope_shape *shape = plan ? plan->shape : NULL;
    const size_t known = shape && shape->more_bytes ? shape->more_bytes(plan->problem, bounds) : 0,
                 more = known > first ? known : first;
    size_t most;
    return __builtin_add_overflow(first, more, &most) ||
                   __builtin_add_overflow(most, ROPE_WORKSPACE_MORE, &most)
               ? SIZE_MAX
               : most;
}

rope_status rope_plan_workspace(const rope_plan *plan, const void *bounds, size_t *bytes) {
    if (!plan || !bytes)
        return rope_fail_null(plan ? "bytes" : "plan");
    size_t last = 0;
    rope_status status = workspace_of(plan, &plan->first, bounds, bytes);
    if (plan->last.candidate) /* which takes the calls of a first one that has none */
        status = workspace_of(plan, &plan->last, bounds, &last);
    *bytes = last > *bytes ? last : *bytes;
    const size_t most = status == ROPE_OK ? rope_plan_workspace_most(plan, bounds, *bytes) : 0;
    for (int i = 0; plan->tuning && i < ROPE_TUNED_KERNELS && status == ROPE_OK; i++) {
        const rope_bound_kernel *kernel = &plan->tuning->kernels[i];
        size_t one;
        if (workspace_of(plan, kernel, bounds, &one) != ROPE_OK)
            rope_log(ROPE_LOG_CANDIDATE, "%s has no calls of these bounds: %s", kernel->name,
                     rope_last_error());
        else if (one > most)
            rope_log(ROPE_LOG_CANDIDATE, "%s has no calls of these bounds: %zu bytes of workspace",
                     kernel->name, one);
        else if (one > *bytes)
            *bytes = one;
    }
    return status == ROPE_OK && plan->around ? plan->around->workspace(plan->problem, bounds, bytes)
                                             : status;
}

int32_t rope_plan_numerics(const rope_plan *plan) {
    int32_t numerics = plan ? plan->first.candidate->numerics : 0;
    for (int i = 0; plan && plan->tuning && i < ROPE_TUNED_KERNELS; i++) {
        const rope_candidate *c = plan->tuning->kernels[i].candidate;
        numerics = c && c->numerics == ROPE_BOUNDED ? ROPE_BOUNDED : numerics;
    }
    return numerics;
}

const char *rope_plan_kernel(const rope_plan *plan) {
    return plan ? plan->name : NULL;
}

static const char *name_of(const rope_bound_kernel *kernel, const void *call) {
    const rope_candidate *c = kernel->candidate;
    const char *(*kernel_of)(const void *, const void *) =
        ROPE_CANDIDATE_FUNCTION(kernel->backend, c, kernel_of);
    const char *name = kernel_of ? kernel_of(kernel->kernel, call) : NULL;
    return name ? name : kernel->name;
}

const char *rope_plan_name_of(const rope_plan *plan, const void *call) {
    const rope_bound_kernel *const tried[] = {rope_plan_kernel_for(plan, call), &plan->first,
                                              &plan->last};
    const char *name = "";
    for (int i = 0; i < 3 && !name[0]; i++)
        name = tried[i]->candidate ? name_of(tried[i], call) : name;
    return name;
}

const char *rope_plan_kernel_of(const rope_plan *plan, const void *args) {
    _Alignas(16) char call[ROPE_MAX_CALL_SIZE];
    void *stream;
    int empty = 0;
    if (!plan || plan->operation->read(plan->problem, args, call, &stream, &empty) != ROPE_OK)
        return NULL;
    return empty ? plan->first.name : rope_plan_name_of(plan, call);
}

int32_t rope_plan_shape(const rope_plan *plan, const void *args, rope_shape_entry *entries) {
    _Alignas(16) char call[ROPE_MAX_CALL_SIZE];
    int64_t values[ROPE_SHAPE_MOST];
    void *stream;
    int empty = 0;
    if (!plan || !plan->shape || !entries ||
        plan->operation->read(plan->problem, args, call, &stream, &empty) != ROPE_OK || empty)
        return 0;
    plan->shape->fill(plan->problem, call, values);
    int32_t count = 0;
    for (int32_t i = 0; i < plan->shape->count; i++) {
        const rope_shape_field *field = &plan->shape->fields[i];
        if (!field->like || values[i] != rope_shape_absent(field, values))
            entries[count++] = (rope_shape_entry){
                field->name, field->texts ? field->texts[values[i] - 1] : NULL, values[i]};
    }
    return count;
}

const char *rope_plan_report(const rope_plan *plan) {
    return plan ? plan->report : NULL;
}
