/* Kernels of a plan among which its calls choose by a table. */
#include "common/candidate.h"
#include "common/plan.h"
#include "common/registry.h"
#include "common/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether another backend than the plan's has the plan's device. */
static int serves(const rope_backend *backend, const rope_plan *plan,
                  const rope_device_info *device, char *reason) {
    char said[ROPE_REASON_SIZE] = "it has another device";
    rope_device_info info = {.struct_size = sizeof info};
    int32_t count = 0;
    const int has = backend->device_count(&count, said) == ROPE_OK && plan->device < count &&
                    backend->device_info(plan->device, &info) == ROPE_OK &&
                    strcmp(info.name, device->name) == 0;
    if (!has)
        snprintf(reason, ROPE_REASON_SIZE, "declined: %.140s", said);
    return has;
}

/* Binds the candidate of a name: of the plan's backend, or of another one for the same device. */
static rope_status bind(const rope_plan *plan, const rope_device_info *device, const char *name,
                        rope_bound_kernel *kernel, char *reason) {
    const char *separator = strchr(name, ':');
    const rope_entry *entry = rope_registry_find(name, (size_t)(separator - name));
    const rope_backend *backend = entry ? entry->backend : NULL;
    const rope_candidate *candidate;
    snprintf(reason, ROPE_REASON_SIZE, "declined: there is none of this name");
    if (!backend || (backend != plan->backend && !serves(backend, plan, device, reason)))
        return ROPE_DECLINED;
    for (int32_t i = 0; (candidate = rope_candidate_of(backend, plan->operation->name, i)); i++)
        if (strcmp(candidate->name, separator + 1) == 0)
            return rope_plan_bind(plan, backend, candidate, kernel, reason);
    return ROPE_DECLINED;
}

static int is_of(const rope_backend *backend, const char *name) {
    const size_t length = strlen(backend->name);
    return strncmp(name, backend->name, length) == 0 && name[length] == ':';
}

/* Prepares kernel `index` of the table, unless it is the first one or there is none. */
static rope_status prepare(rope_plan *plan, const rope_device_info *device, int32_t index) {
    rope_bound_kernel *kernel = &plan->tuning->kernels[index];
    const char *name = plan->tuning->table.kernels[index];
    char reason[ROPE_REASON_SIZE];
    if (strcmp(name, plan->first.name) == 0)
        return ROPE_OK;
    const rope_status status = bind(plan, device, name, kernel, reason);
    if (status == ROPE_OK) {
        memcpy(kernel->name, name, sizeof kernel->name); /* the same size */
        if (strlen(plan->name) + strlen(kernel->name) + 2 < sizeof plan->name)
            strcat(strcat(plan->name, ","), kernel->name);
    } else if (is_of(plan->backend, name)) {
        rope_tuning_leave_out(&plan->tuning->table, index); /* as of other devices */
    }
    rope_plan_note(plan, name, status == ROPE_OK ? "accepted, by the table" : reason);
    return status == ROPE_OK || status == ROPE_DECLINED ? ROPE_OK
                                                        : rope_fail(status, "%s: %s", name, reason);
}

rope_status rope_plan_tune(rope_plan *plan, const char *file) {
    int64_t values[ROPE_SHAPE_MOST] = {0};
    rope_device_info device = {.struct_size = sizeof device};
    rope_status status = plan->backend->device_info(plan->device, &device);
    device.backend = plan->backend->name;
    rope_plan_tuning *tuning = status == ROPE_OK ? calloc(1, sizeof *tuning) : NULL;
    if (status == ROPE_OK && !tuning)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for a plan");
    if (status != ROPE_OK)
        return status;
    plan->tuning = tuning;
    plan->shape->fill(plan->problem, NULL, values);
    status =
        rope_tuning_load(file, &device, plan->operation->name, plan->shape, values, &tuning->table);
    if (status == ROPE_OK && tuning->table.point_count)
        rope_plan_note(plan, tuning->table.origin, "is the table by which calls choose");
    for (int32_t i = 0; i < tuning->table.kernel_count && status == ROPE_OK; i++)
        status = prepare(plan, &device, i);
    int others = 0;
    for (int32_t i = 0; i < tuning->table.kernel_count; i++)
        others += tuning->kernels[i].candidate != NULL;
    if (!others)
        rope_plan_tuning_release(plan);
    return status;
}

void rope_plan_tuning_release(rope_plan *plan) {
    if (!plan->tuning)
        return;
    for (int32_t i = 0; i < ROPE_TUNED_KERNELS; i++)
        rope_plan_unbind(&plan->tuning->kernels[i]);
    rope_tuning_release(&plan->tuning->table);
    free(plan->tuning);
    plan->tuning = NULL;
}

const rope_bound_kernel *rope_plan_kernel_for(const rope_plan *plan, const void *call) {
    const rope_plan_tuning *tuning = plan->tuning;
    int64_t values[ROPE_SHAPE_MOST];
    if (!tuning)
        return &plan->first;
    plan->shape->fill(plan->problem, call, values);
    const rope_bound_kernel *kernel =
        &tuning->kernels[rope_tuning_nearest(&tuning->table, plan->shape, values)];
    return kernel->candidate ? kernel : &plan->first;
}
