/* Two devices: a plan runs on its own, from whatever thread, and the caller's current device stays
 * what it was behind every call. */
#include "tests/gpu/fixture.h"

#include <pthread.h>

/* The call by its text, behind which `current` is still the current device. */
#define STAYS(current, expected, call)                                                             \
    do {                                                                                           \
        CHECK_STATUS(expected, call);                                                              \
        fixture_check_current(current, #call);                                                     \
    } while (0)

static fixture_pair pair;

enum { ROUNDS = 50 };

static void take_in_turn(int kind) {
    fixture_pair_open(&pair, kind);
    for (int round = 0; round < ROUNDS; round++) {
        const int current = round / 2 % 2, first = round % 2;
        CHECK_GPU(gpuSetDevice(current));
        STAYS(current, ROPE_OK, fixture_pair_apply(&pair, first));
        STAYS(current, ROPE_OK, fixture_pair_apply(&pair, !first));
    }
    for (int device = 0; device < 2; device++) {
        CHECK_GPU(gpuSetDevice(!device));
        fixture_check(&pair.on[device], pair.stream[device], "in turn with another device");
        fixture_check_current(!device, "its check");
    }
    fixture_pair_close(&pair);
}

TEST(devices, one_thread_takes_both_in_turn) {
    for (int kind = 0; kind < FIXTURE_KINDS; kind++)
        take_in_turn(kind);
}

/* A thread whose current device is not the one it works on. */
typedef struct worker {
    pthread_t thread;
    int device, current;
    rope_status status;
} worker;

static void *work(void *opaque) {
    worker *w = opaque;
    int failed = gpuSetDevice(!w->device) != gpuSuccess;
    for (int round = 0; round < ROUNDS && w->status == ROPE_OK && !failed; round++) {
        w->status = fixture_pair_apply(&pair, w->device);
        if (w->status == ROPE_OK)
            w->status = rope_device_synchronize(pair.on[w->device].device);
        failed = gpuGetDevice(&w->current) != gpuSuccess || w->current != !w->device;
    }
    return NULL;
}

TEST(devices, two_threads_take_one_each) {
    worker workers[2] = {{.device = 0, .current = -1}, {.device = 1, .current = -1}};
    fixture_pair_open(&pair, FIXTURE_PLAIN);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "no thread");
    for (int i = 0; i < 2; i++)
        pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(ROPE_OK, workers[i].status);
        CHECK(workers[i].current == !i, "the current device of thread %d is %d", i,
              workers[i].current);
        fixture_check(&pair.on[i], pair.stream[i], "a thread for each device");
    }
    fixture_pair_close(&pair);
}

static void check_memory_calls(int device, int current) {
    fixture *f = &pair.on[device];
    rope_device *opened = NULL;
    rope_device_info info = {.struct_size = sizeof info};
    void *memory = NULL;
    STAYS(current, ROPE_OK, rope_device_open(GPU_BACKEND_NAME, device, &opened));
    STAYS(current, ROPE_OK, rope_device_get(opened, &info));
    STAYS(current, ROPE_OK, rope_device_alloc(opened, sizeof f->in, &memory));
    STAYS(current, ROPE_OK, rope_device_copy_in(opened, memory, f->in, sizeof f->in));
    STAYS(current, ROPE_OK, rope_device_copy_out(opened, f->out, memory, sizeof f->in));
    STAYS(current, ROPE_OK, rope_device_synchronize(opened));
    STAYS(current, ROPE_OK, rope_device_free(opened, memory));
    STAYS(current, ROPE_ERROR_OUT_OF_MEMORY, rope_device_alloc(opened, (size_t)1 << 60, &memory));
    CHECK(rope_device_kernel(opened, "rope", 0), "no kernel");
    fixture_check_current(current, "rope_device_kernel");
    rope_device_close(opened);
    fixture_check_current(current, "rope_device_close");
}

static void check_plan_calls(int device, int current) {
    rope_desc desc = pair.on[device].desc;
    rope_plan *plan = NULL;
    rope_args args = fixture_args(&pair.on[device], pair.stream[device]);
    STAYS(current, ROPE_OK, rope_plan_create(&desc, &plan));
    STAYS(current, ROPE_OK, rope_apply(plan, &args));
    args.stream = pair.stream[!device];
    STAYS(current, ROPE_ERROR_INVALID_VALUE, rope_apply(plan, &args));
    args.tokens = -1;
    STAYS(current, ROPE_ERROR_INVALID_VALUE, rope_apply(plan, &args));
    rope_plan_destroy(plan);
    fixture_check_current(current, "rope_plan_destroy");
    desc.kernel = "plain";
    desc.arithmetic = ROPE_ARITHMETIC_MODEL_DTYPE;
    STAYS(current, ROPE_ERROR_UNSUPPORTED, rope_plan_create(&desc, &plan));
    desc.device = 12345;
    STAYS(current, ROPE_ERROR_NO_DEVICE, rope_plan_create(&desc, &plan));
}

static void check_clock_calls(int device, int current) {
    const fixture *f = &pair.on[device];
    const rope_args args = fixture_args(f, NULL);
    for (int32_t kind = ROPE_TIME_APPLY; kind <= ROPE_TIME_UPDATE; kind++)
        for (int32_t graph = 0; graph < 2; graph++) {
            rope_timing timing = {.struct_size = sizeof timing, .kind = kind, .graph = graph};
            timing.iterations = 3;
            timing.args_count = 1;
            if (kind <= ROPE_TIME_KERNEL) {
                timing.plan = pair.plan[device];
                timing.args = &args;
            } else {
                timing.target = f->memory + FIXTURE_ELEMENTS;
                timing.source = kind == ROPE_TIME_COPY ? f->memory : NULL;
                timing.bytes = sizeof f->in;
            }
            STAYS(current, ROPE_OK, rope_time(f->device, &timing));
        }
}

TEST(devices, current_one_stays_behind_every_call) {
    fixture_pair_open(&pair, FIXTURE_PLAIN);
    for (int device = 0; device < 2; device++)
        for (int current = 0; current < 2; current++) {
            CHECK_GPU(gpuSetDevice(current));
            check_memory_calls(device, current);
            check_plan_calls(device, current);
            check_clock_calls(device, current);
        }
    fixture_pair_close(&pair);
}

TEST(devices, absent_one_is_refused) {
    static fixture f;
    int count = 0;
    fixture_open(&f, 0, FIXTURE_PLAIN);
    fixture_close(&f);
    CHECK_GPU(gpuGetDeviceCount(&count));
    f.desc.device = count;
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_ERROR_NO_DEVICE, rope_plan_create(&f.desc, &plan));
    CHECK(plan == NULL, "a plan was made");
}
