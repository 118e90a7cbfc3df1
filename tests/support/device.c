#define _GNU_SOURCE
#include "tests/support/device.h"

#include "tests/support/harness.h"
#include "tests/support/required.h"
#include "tests/support/stack.h"

#include <ropekit/backend.h>

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
    setenv("ROPE_TUNING", "none", 0); /* what a table chooses may promise less than the first */
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

int device_runs_on_cpu(void) {
    return device_is_host() || test_number("ROPE_TEST_EMULATED", 0);
}

int device_is_provider(void) {
    return strcmp(device_backend(), "cudnn") == 0;
}

void device_not_provided(const char *why) {
    if (device_is_provider())
        SKIP("%s: %s", device_backend(), why);
}

static int is_generic_left_out(void) {
    return test_number("ROPE_TEST_EMULATED", 0) > 1;
}

void device_check_runs(int64_t *runs) {
    const int64_t count = *runs;
    *runs = 0;
    if (count == 0 && is_generic_left_out())
        SKIP("the generic kernel alone takes such calls");
    CHECK(count > 0, "every call was declined; %s", rope_last_error());
}

static int is_under_test(const char *operation, const char *name) {
    const int attends =
        strcmp(operation, "attention") == 0 || strcmp(operation, "attention_backward") == 0;
    return strcmp(name, "reference") != 0 &&
           !(attends && strcmp(name, "generic") == 0 && is_generic_left_out());
}

const char *device_kernel_of(const char *operation, int32_t index) {
    const char *name;
    for (int32_t i = 0; (name = rope_device_kernel(device_open(), operation, i)); i++)
        if (is_under_test(operation, name) && index-- == 0)
            return name;
    return NULL;
}

const char *device_kernel(int32_t index) {
    return device_kernel_of("rope", index);
}

typedef struct job {
    device_work *work;
    const void *state;
    const test_case *c;
    void *memory;
    rope_status status;
} job;

static void run_job(void *opaque) {
    job *j = opaque;
    j->status = j->work(j->state, j->c, j->memory);
}

rope_status device_with_copy(const test_case *c, device_work *work, const void *state,
                             unsigned char *result) {
    rope_device *device = device_open();
    void *memory = NULL;
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device, c->bytes, &memory));
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device, memory, c->arena, c->bytes));
    job j = {work, state, c, memory, ROPE_OK};
    if (stack_limited())
        stack_run(stack_limited(), run_job, &j);
    else
        run_job(&j);
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device, result, memory, c->bytes));
    CHECK_STATUS(ROPE_OK, rope_device_free(device, memory));
    return j.status;
}

rope_status device_with_workspace(const test_case *c, device_work *work, const void *state,
                                  void **workspace, size_t bytes, unsigned char *result) {
    enum { ALIGNMENT = 256 };
    void *memory = NULL;
    if (bytes == 0)
        return device_with_copy(c, work, state, result);
    /* NaN in floating-point types of 16 bits and more, and many as a count. */
    static const unsigned char pattern[4] = {0xff, 0xff, 0xfe, 0x7f};
    unsigned char *noise = malloc(bytes + ALIGNMENT);
    for (size_t i = 0; i < bytes + ALIGNMENT; i++)
        noise[i] = pattern[i % sizeof pattern];
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device_open(), bytes + ALIGNMENT, &memory));
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), memory, noise, bytes + ALIGNMENT));
    free(noise);
    *workspace = (char *)memory + (ALIGNMENT - (uintptr_t)memory % ALIGNMENT) % ALIGNMENT;
    const rope_status status = device_with_copy(c, work, state, result);
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), memory));
    return status;
}

typedef struct rope_calls {
    const rope_plan *plan;
    const rope_args *args;
    int32_t count;
} rope_calls;

static rope_status run_calls(const void *state, const test_case *c, void *memory) {
    const rope_calls *calls = state;
    for (int32_t i = 0; i < calls->count; i++) {
        rope_args moved = calls->args[i];
        case_relocate(&moved, c->arena, memory);
        rope_status status = rope_apply(calls->plan, &moved);
        if (status != ROPE_OK)
            return status;
    }
    return ROPE_OK;
}

rope_status device_replay(const rope_plan *plan, const void *args, void *workspace) {
    rope_timing timing = {.struct_size = sizeof timing,
                          .kind = ROPE_TIME_APPLY,
                          .graph = 1,
                          .iterations = 1,
                          .plan = plan,
                          .args = args,
                          .args_count = 1,
                          .workspace = workspace};
    rope_shape_entry shape[ROPE_SHAPE_MOST];
    return rope_plan_shape(plan, args, shape) ? rope_time(device_open(), &timing)
                                              : rope_plan_apply(plan, args, workspace);
}

rope_status device_run(const test_case *c, const rope_desc *desc, const rope_args *args,
                       int32_t count, const char *kernel, unsigned char *result) {
    rope_desc bound = *desc;
    device_open(); /* skips where there is none */
    device_choose(&bound);
    bound.kernel = kernel;
    rope_plan *plan = NULL;
    rope_status status = rope_plan_create(&bound, &plan);
    if (status != ROPE_OK)
        return status;
    rope_calls calls = {plan, args, count};
    status = device_with_copy(c, run_calls, &calls, result);
    rope_plan_destroy(plan);
    return status;
}

void device_check_flag(const test_case *c, const rope_args *args, unsigned char *result) {
    int32_t raised;
    if (!args->position_flag)
        return;
    unsigned char *flag = result + ((unsigned char *)args->position_flag - c->arena);
    memcpy(&raised, flag, sizeof raised);
    CHECK(raised == 1, "position_flag is %d, not 1", raised);
    memset(flag, 0, sizeof raised);
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
