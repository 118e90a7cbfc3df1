/*
 * What the registry of a fresh process holds, for test_registry.c:
 *     registry_probe list            each backend
 *     registry_probe open NAMES      the backend that NAMES ("-": NULL) choose, or why none
 *     registry_probe kernels NAMES   the kernels of its first device
 *     registry_probe plan NAMES      a plan's kernel, without a device before it, and the log
 *     registry_probe threads NAMES   opens of several threads at once
 *     registry_probe variables NAMES each variable, with NAMES tried before
 *     registry_probe rotate NAMES    one plan: its kernel, and (1, 0) rotated by one radian
 *     registry_probe gather NAMES    a plan of the plugin's own operation: its kernel, and what it
 *                                    gathers
 *     registry_probe attend NAMES    a plan of attention: its kernels, and out's first element
 *     registry_probe decode NAMES    plans of decode, of any kernel and of one that is named: of a
 *                                    call of one token and of two the kernel, and out's first
 *                                    element or why none
 */
#include "tests/plugin/gather.h"

#include <ropekit/decode.h>

#include <pthread.h>
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
    for (int32_t i = 0; (name = rope_device_kernel(device, "rope", i)); i++)
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

static void print_log(void *user, int32_t level, const char *text) {
    (void)user;
    printf("%d %s\n", level, text);
}

static int plans(const char *names) {
    rope_desc desc = {
        .struct_size = sizeof desc, .dtype = ROPE_F32, .head_dim = 2, .backend = names};
    rope_set_log(print_log, NULL);
    for (int i = 0; i < 2; i++) {
        rope_plan *plan = NULL;
        rope_status status = rope_plan_create(&desc, &plan);
        if (status != ROPE_OK)
            return fail(status);
        puts(rope_plan_kernel(plan));
        rope_plan_destroy(plan);
    }
    return 0;
}

static void *open_for_thread(void *names) {
    rope_device *device = NULL;
    rope_status status = rope_device_open(names, 0, &device);
    int32_t count = rope_backend_count() + rope_variable_count();
    rope_device_close(device);
    return status == ROPE_OK && count > 0 ? names : NULL;
}

static int threads(const char *names) {
    enum { THREADS = 8 };
    pthread_t thread[THREADS];
    int opened = 0;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&thread[i], NULL, open_for_thread, (void *)(uintptr_t)names) != 0)
            return 1;
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(thread[i], &result);
        opened += result != NULL;
    }
    printf("opened by %d\n", opened);
    return 0;
}

static int variables(const char *names) {
    rope_device *device = NULL;
    rope_set_log(print_log, NULL);
    rope_device_close(rope_device_open(names, 0, &device) == ROPE_OK ? device : NULL);
    for (int32_t i = 0; i < rope_variable_count(); i++) {
        rope_variable_info info = {.struct_size = sizeof info};
        rope_status status = rope_variable_get(i, &info);
        if (status != ROPE_OK)
            return fail(status);
        printf("%s|%s|%s|%s|\n", info.name, info.value ? info.value : "", info.selects,
               info.reason);
    }
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

/* The caller's arguments of the plugin's operation. */
typedef struct gather_args {
    size_t struct_size;
    gather_call call;
} gather_args;

static rope_status gather_read(const void *problem, const void *args, void *call, void **stream,
                               int *empty) {
    (void)problem;
    const gather_args *given = args;
    *(gather_call *)call = given->call;
    *stream = NULL;
    *empty = given->call.rows == 0;
    return ROPE_OK;
}

static int released;

static void gather_release(void *problem) {
    released += problem != NULL;
}

/* "ab" in slot 5 and "cd" in slot 2 of pages of three rows. */
static int gather(rope_device *device, const char *names) {
    static const rope_operation operation = {.name = GATHER_NAME,
                                             .version = GATHER_VERSION,
                                             .call_size = sizeof(gather_call),
                                             .read = gather_read,
                                             .release = gather_release};
    static const char page0[] = "0011cd", page1[] = "3344ab";
    const void *const pages[] = {page0, page1};
    const int64_t slots[] = {5, 2};
    char row[2], out[5] = "", timed[5] = "";
    int32_t bound = 0;
    gather_problem problem = {2, 3, &bound}, wide = {1000, 3, &bound};
    gather_args args = {sizeof args, {pages, slots, 2, out}}, again = args;
    again.call.out = timed;
    const rope_choice choice = {.backend = names};
    rope_plan *plan = NULL, *none = NULL;
    size_t bytes = 0;
    rope_status status = rope_plan_make(&operation, &problem, &choice, &plan);
    if (status == ROPE_OK)
        status = rope_plan_workspace(plan, NULL, &bytes);
    if (status == ROPE_OK)
        status = rope_plan_apply(plan, &args, bytes <= sizeof row ? row : NULL);
    rope_timing timing = {.struct_size = sizeof timing,
                          .kind = ROPE_TIME_KERNEL,
                          .iterations = 2,
                          .plan = plan,
                          .args = &again,
                          .args_count = 1,
                          .workspace = row};
    if (status == ROPE_OK)
        status = rope_time(device, &timing);
    if (status != ROPE_OK)
        return fail(status);
    if (strcmp(rope_plan_kernel_of(plan, &args), rope_plan_kernel(plan)) != 0)
        printf("a call runs %s, not ", rope_plan_kernel_of(plan, &args));
    rope_args wrong = {.struct_size = sizeof wrong};
    printf("%s %s, timed %s, workspace %zu, class %d, rope_apply: %s, bound %d",
           rope_plan_kernel(plan), out, timed, bytes, rope_plan_numerics(plan),
           rope_status_string(rope_apply(plan, &wrong)), bound);
    rope_plan_destroy(plan);
    printf(", wide: %s", rope_status_string(rope_plan_make(&operation, &wide, &choice, &none)));
    printf(" (%s), bound %d, released %d\n", rope_last_error(), bound, released);
    return 0;
}

static int attend(rope_device *device, const char *names) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    rope_attention_args args = ROPE_ATTENTION_ARGS_INIT;
    rope_plan *plan = NULL;
    void *memory = NULL;
    float x = 0;
    desc.rope.backend = names;
    desc.rope.dtype = ROPE_F32;
    desc.rope.head_dim = 2;
    desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    rope_status status = rope_device_alloc(device, 8 * sizeof x, &memory);
    float *at = memory;
    if (status == ROPE_OK)
        status = rope_attention_plan_create(&desc, &plan);
    if (status != ROPE_OK)
        return fail(status);
    args.rope.batch = args.rope.tokens = 1;
    args.rope.q = (rope_tensor){.in = at, .heads = 1};
    args.rope.k = (rope_tensor){.in = at + 2, .heads = 1};
    args.v = (rope_tensor){.in = at + 4, .heads = 1};
    args.out.data = at + 6;
    const rope_attention_bounds bounds = {sizeof bounds, 1, 1, 1, 0, 1, 1};
    rope_timing timing = {.struct_size = sizeof timing,
                          .kind = ROPE_TIME_KERNEL,
                          .iterations = 1,
                          .plan = plan,
                          .args = &args,
                          .args_count = 1};
    status = rope_attention_workspace(plan, &bounds, &args.workspace_bytes);
    if (status == ROPE_OK && args.workspace_bytes > 0) /* the first kernel has none */
        status = ROPE_ERROR_OVERFLOW;
    if (status == ROPE_OK)
        status = rope_attention(plan, &args);
    if (status == ROPE_OK)
        status = rope_device_copy_out(device, &x, at + 6, sizeof x);
    if (status == ROPE_OK)
        status = rope_time(device, &timing);
    if (status != ROPE_OK)
        return fail(status);
    printf("%s %.0f\n", rope_plan_kernel(plan), x);
    rope_plan_destroy(plan);
    return 0;
}

static void decode_tokens(rope_device *device, const rope_plan *plan, float *at, int64_t tokens) {
    const int64_t length = 2;
    float x = 0;
    rope_decode_args args = ROPE_DECODE_ARGS_INIT;
    rope_append_args *a = &args.append;
    a->rope.batch = 1;
    a->rope.tokens = tokens;
    a->rope.q = (rope_tensor){.in = at, .heads = 1};
    a->rope.k = (rope_tensor){.in = at + 4, .heads = 1};
    a->v = (rope_tensor){.in = at + 8, .heads = 1};
    a->k_cache.data = at + 12;
    a->v_cache.data = at + 16;
    a->pages = 1;
    args.k_lengths = &length;
    args.out.data = at + 20;
    args.workspace = (char *)(at + 24) + (256 - (uintptr_t)(at + 24) % 256) % 256;
    args.workspace_bytes = 256;
    rope_status status = rope_device_copy_in(device, at + 20, &x, sizeof x);
    if (status == ROPE_OK)
        status = rope_decode(plan, &args);
    if (status == ROPE_OK)
        status = rope_device_copy_out(device, &x, at + 20, sizeof x);
    printf("%s ", rope_plan_kernel_of(plan, &args));
    if (status == ROPE_OK)
        printf("%.0f\n", x);
    else
        fail(status);
}

static int decode(rope_device *device, const char *names) {
    static const char *const kernels[] = {NULL, "single", "first", "composed"};
    rope_decode_desc desc = ROPE_DECODE_DESC_INIT;
    void *memory = NULL;
    rope_status status = rope_device_alloc(device, 1024, &memory);
    desc.append.rope.backend = names;
    desc.append.rope.dtype = ROPE_F32;
    desc.append.rope.head_dim = 2;
    desc.append.cache = ROPE_CACHE_SEQUENCE;
    desc.append.page_size = 2;
    for (int k = 0; k < 4 && status == ROPE_OK; k++) {
        rope_plan *plan = NULL;
        desc.append.rope.kernel = kernels[k];
        status = rope_decode_plan_create(&desc, &plan);
        if (status != ROPE_OK)
            break;
        printf("%s: ", rope_plan_kernel(plan));
        decode_tokens(device, plan, memory, 1);
        decode_tokens(device, plan, memory, 2);
        rope_plan_destroy(plan);
    }
    return status == ROPE_OK ? 0 : fail(status);
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
    else if (strcmp(command, "attend") == 0)
        result = attend(device, names);
    else if (strcmp(command, "decode") == 0)
        result = decode(device, names);
    else if (strcmp(command, "gather") == 0)
        result = gather(device, names);
    else
        printf("ok %s\n", info.backend);
    rope_device_close(device);
    return result;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "list") == 0)
        return list();
    if (argc != 3) {
        fprintf(stderr, "usage: registry_probe list | "
                        "open|kernels|rotate|attend|decode|gather|plan|threads|variables NAMES\n");
        return 2;
    }
    const char *names = strcmp(argv[2], "-") == 0 ? NULL : argv[2];
    return strcmp(argv[1], "plan") == 0        ? plans(names)
           : strcmp(argv[1], "threads") == 0   ? threads(names)
           : strcmp(argv[1], "variables") == 0 ? variables(names)
                                               : open_device(argv[1], names);
}
