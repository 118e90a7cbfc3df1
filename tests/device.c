#define _GNU_SOURCE
#include "tests/device.h"

#include "tests/harness.h"
#include "tests/required.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

const char *device_backend(void) {
    const char *name = getenv("ROPE_BACKEND");
    return name && *name ? name : "cpu";
}

void device_choose(rope_desc *desc) {
    desc->backend = device_backend();
    desc->device = test_device();
}

rope_device *device_open(void) {
    static rope_device *device;
    if (device)
        return device;
    rope_status status = rope_device_open(device_backend(), test_device(), &device);
    if (test_requires(device_backend()))
        CHECK_STATUS(ROPE_OK, status);
    if (status != ROPE_OK)
        SKIP("%s: %s", rope_status_string(status), rope_last_error());
    return device;
}

rope_desc device_desc(void) {
    rope_desc desc = {.struct_size = sizeof desc, .dtype = ROPE_F32, .head_dim = 64};
    device_open(); /* skips where there is none */
    device_choose(&desc);
    return desc;
}

int device_is_host(void) {
    rope_device_info info = {.struct_size = sizeof info};
    CHECK_STATUS(ROPE_OK, rope_device_get(device_open(), &info));
    return strcmp(info.backend, "cpu") == 0;
}

const char *device_kernel(int32_t index) {
    const char *name;
    for (int32_t i = 0; (name = rope_device_kernel(device_open(), "rope", i)); i++)
        if (strcmp(name, "reference") != 0 && index-- == 0)
            return name;
    return NULL;
}

static rope_status run_calls(const rope_plan *plan, const test_case *c, const rope_args *args,
                             int32_t count, void *memory) {
    for (int32_t i = 0; i < count; i++) {
        rope_args moved = args[i];
        case_relocate(&moved, c->arena, memory);
        rope_status status = rope_apply(plan, &moved);
        if (status != ROPE_OK)
            return status;
    }
    return ROPE_OK;
}

rope_status device_run(const test_case *c, const rope_desc *desc, const rope_args *args,
                       int32_t count, const char *kernel, unsigned char *result) {
    rope_device *device = device_open();
    rope_desc bound = *desc;
    device_choose(&bound);
    bound.kernel = kernel;
    rope_plan *plan = NULL;
    rope_status status = rope_plan_create(&bound, &plan);
    if (status != ROPE_OK)
        return status;
    void *memory = NULL;
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device, c->bytes, &memory));
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device, memory, c->arena, c->bytes));
    status = run_calls(plan, c, args, count, memory);
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device, result, memory, c->bytes));
    CHECK_STATUS(ROPE_OK, rope_device_free(device, memory));
    rope_plan_destroy(plan);
    return status;
}

int device_threads(int count) {
    void *symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    void (*set_threads)(int);
    memcpy(&set_threads, &symbol, sizeof symbol);
    if (!symbol)
        return 0;
    set_threads(count);
    return 1;
}
