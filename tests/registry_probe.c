/*
 * What the registry of a fresh process holds, for test_registry.c:
 *     registry_probe list            each backend
 *     registry_probe open NAMES      the backend that NAMES ("-": NULL) choose, or why none
 *     registry_probe kernels NAMES   the kernels of its first device
 *     registry_probe rotate NAMES    one plan: its kernel, and (1, 0) rotated by one radian
 */
#include <ropekit/rope.h>

#include <stdio.h>
#include <string.h>

static int fail(rope_status status) {
    printf("%s: %s\n", rope_status_string(status), rope_last_error());
    return 1;
}

static int list(void) {
    for (int32_t i = 0; i < rope_backend_count(); i++) {
        rope_backend_info info = {.struct_size = sizeof info};
        rope_status status = rope_backend_get(i, &info);
        if (status != ROPE_OK)
            return fail(status);
        printf("%s|%s|%d|%s|%s\n", info.name, rope_status_string(info.status), info.device_count,
               info.origin, info.reason);
    }
    return 0;
}

static int kernels(const rope_device *device) {
    const char *name;
    for (int32_t i = 0; (name = rope_device_kernel(device, ROPE_TIME_KERNEL, i)); i++)
        printf("%s\n", name);
    return 0;
}

static int apply(rope_device *device, const rope_plan *plan) {
    float x[2] = {1, 0};
    void *memory = NULL;
    rope_status status = rope_device_alloc(device, sizeof x, &memory);
    rope_args args = {.struct_size = sizeof args,
                      .batch = 1,
                      .tokens = 1,
                      .q = {.in = memory, .out = memory, .heads = 1},
                      .position_offset = 1};
    if (status == ROPE_OK)
        status = rope_device_copy_in(device, memory, x, sizeof x);
    if (status == ROPE_OK)
        status = rope_apply(plan, &args);
    if (status == ROPE_OK)
        status = rope_device_copy_out(device, x, memory, sizeof x);
    if (status == ROPE_OK)
        status = rope_device_free(device, memory);
    if (status != ROPE_OK)
        return fail(status);
    printf("%s %.6f %.6f\n", rope_plan_kernel(plan), x[0], x[1]);
    return 0;
}

static int rotate(rope_device *device, const char *names) {
    rope_desc desc = {
        .struct_size = sizeof desc, .dtype = ROPE_F32, .head_dim = 2, .backend = names};
    rope_plan *plan = NULL;
    rope_status status = rope_plan_create(&desc, &plan);
    if (status != ROPE_OK)
        return fail(status);
    int result = apply(device, plan);
    rope_plan_destroy(plan);
    return result;
}

static int open_device(const char *command, const char *names) {
    rope_device *device = NULL;
    rope_device_info info = {.struct_size = sizeof info};
    rope_status status = rope_device_open(names, 0, &device);
    if (status == ROPE_OK)
        status = rope_device_get(device, &info);
    if (status != ROPE_OK)
        return fail(status);
    int result = 0;
    if (strcmp(command, "kernels") == 0)
        result = kernels(device);
    else if (strcmp(command, "rotate") == 0)
        result = rotate(device, names);
    else
        printf("ok %s\n", info.backend);
    rope_device_close(device);
    return result;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "list") == 0)
        return list();
    if (argc != 3) {
        fprintf(stderr, "usage: registry_probe list | open|kernels|rotate NAMES\n");
        return 2;
    }
    return open_device(argv[1], strcmp(argv[2], "-") == 0 ? NULL : argv[2]);
}
