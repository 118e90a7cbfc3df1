/* What the device reports comes back as a status with its text; a fault of the caller's own too. */
#include "tests/gpu/fixture.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TABLE_ROWS = 8 };

/* A plan with a table of few rows, on the device. */
static rope_plan *plan_with_table(fixture *f, void **rows) {
    static const float table[TABLE_ROWS * FIXTURE_DIM / 2];
    fixture_open(f, 0, FIXTURE_PLAIN);
    f->desc.angle_mode = ROPE_ANGLE_TABLE;
    f->desc.rope_theta = 0;
    f->desc.table_width = ROPE_TABLE_HALF;
    f->desc.out_of_range = ROPE_OUT_OF_RANGE_ERROR;
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_OK, rope_plan_create(&f->desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_device_alloc(f->device, sizeof table, rows));
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(f->device, *rows, table, sizeof table));
    return plan;
}

static rope_args args_with_table(const fixture *f, const void *rows, int beyond, int32_t *flag) {
    rope_args args = fixture_args(f, NULL);
    args.cos = args.sin = rows;
    args.position_flag = flag;
    args.position_ids = NULL;
    args.table_rows = TABLE_ROWS;
    args.tokens = TABLE_ROWS + beyond;
    return args;
}

TEST(faults, flag_tells_of_positions_out_of_the_table) {
    static fixture f;
    void *rows = NULL, *flag = NULL;
    int32_t raised = 0;
    rope_plan *plan = plan_with_table(&f, &rows);
    CHECK_STATUS(ROPE_OK, rope_device_alloc(f.device, sizeof raised, &flag));
    for (int beyond = 0; beyond < 2; beyond++) {
        rope_args args = args_with_table(&f, rows, beyond, flag);
        raised = 0;
        CHECK_STATUS(ROPE_OK, rope_device_copy_in(f.device, flag, &raised, sizeof raised));
        CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
        CHECK_STATUS(ROPE_OK, rope_device_copy_out(f.device, &raised, flag, sizeof raised));
        CHECK(raised == beyond, "the flag is %d with %d tokens beyond the table", raised, beyond);
    }
    CHECK_STATUS(ROPE_OK, rope_device_free(f.device, rows));
    CHECK_STATUS(ROPE_OK, rope_device_free(f.device, flag));
    rope_plan_destroy(plan);
    fixture_close(&f);
}

/* Read where it lies, with no copy. */
TEST(faults, flag_may_lie_in_pinned_memory_of_the_host) {
    static fixture f;
    void *rows = NULL, *memory = NULL;
    rope_plan *plan = plan_with_table(&f, &rows);
    CHECK_GPU(gpuHostMalloc(&memory, sizeof(int32_t)));
    int32_t *flag = memory;
    for (int beyond = 0; beyond < 2; beyond++) {
        rope_args args = args_with_table(&f, rows, beyond, flag);
        *flag = 0;
        CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
        CHECK_GPU(gpuStreamSynchronize(NULL));
        CHECK(*flag == beyond, "the flag is %d with %d tokens beyond the table", *flag, beyond);
    }
    CHECK_GPU(gpuHostFree(memory));
    CHECK_STATUS(ROPE_OK, rope_device_free(f.device, rows));
    rope_plan_destroy(plan);
    fixture_close(&f);
}

TEST(faults, too_much_memory_is_a_status) {
    static fixture f;
    fixture_open(&f, 0, FIXTURE_PLAIN);
    void *memory = &f;
    CHECK_STATUS(ROPE_ERROR_OUT_OF_MEMORY, rope_device_alloc(f.device, (size_t)1 << 60, &memory));
    CHECK(memory == (void *)&f, "the pointer was touched");
    CHECK(strstr(rope_last_error(), "out of memory"), "%s", rope_last_error());
    fixture_close(&f);
}

/* The first call of a plan names the pointer, and no kernel has run. */
static void is_told(const rope_plan *plan, const rope_args *args, const char *pointer) {
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_apply(plan, args));
    CHECK(strstr(rope_last_error(), pointer), "%s is not what is told of: %s", pointer,
          rope_last_error());
}

TEST(faults, memory_of_the_host_is_told_at_the_first_call) {
    static fixture f;
    fixture_open(&f, 0, FIXTURE_PLAIN);
    if (!gpu_is_out_of_reach(0, f.in))
        SKIP("the device reaches the host's memory, or the runtime cannot tell");
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_OK, rope_plan_create(&f.desc, &plan));
    rope_args args = fixture_args(&f, NULL);
    args.k.in = f.in;
    is_told(plan, &args, "k.in is 0x");
    args = fixture_args(&f, NULL);
    args.position_ids = f.host_ids;
    is_told(plan, &args, "position_ids is 0x");
    args = fixture_args(&f, NULL);
    args.sequence_offsets = f.host_ids;
    is_told(plan, &args, "sequence_offsets is 0x");
    args = fixture_args(&f, NULL);
    args.cu_seqlens = f.host_ids;
    args.sequences = 1;
    is_told(plan, &args, "cu_seqlens is 0x");
    args = fixture_args(&f, NULL);
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    fixture_check(&f, NULL, "behind calls that were refused");
    rope_plan_destroy(plan);
    fixture_close(&f);
}

TEST(faults, table_of_the_host_is_told_at_the_first_call) {
    static fixture f;
    void *rows = NULL;
    rope_plan *plan = plan_with_table(&f, &rows);
    if (!gpu_is_out_of_reach(0, f.in))
        SKIP("the device reaches the host's memory, or the runtime cannot tell");
    rope_args args = args_with_table(&f, rows, 0, NULL);
    args.cos = f.host_ids;
    is_told(plan, &args, "cos is 0x");
    args = args_with_table(&f, rows, 0, NULL);
    args.sin = f.host_ids;
    is_told(plan, &args, "sin is 0x");
    args = args_with_table(&f, rows, 0, (int32_t *)f.host_ids);
    is_told(plan, &args, "position_flag is 0x");
    args = args_with_table(&f, rows, 0, NULL);
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    CHECK_STATUS(ROPE_OK, rope_device_free(f.device, rows));
    rope_plan_destroy(plan);
    fixture_close(&f);
}

/* Runs in a process of its own, since the fault stays with the context: strides that leave an
 * allocation are met by the device, and every later call says so. Returns 0 where it is told. */
static int fault(void) {
    rope_desc desc = ROPE_DESC_INIT;
    desc.backend = GPU_BACKEND_NAME;
    desc.dtype = ROPE_F32;
    desc.head_dim = 64;
    rope_plan *plan = NULL;
    rope_device *device = NULL;
    void *memory = NULL;
    if (rope_device_open(GPU_BACKEND_NAME, 0, &device) != ROPE_OK ||
        rope_device_alloc(device, 64 * sizeof(float), &memory) != ROPE_OK ||
        rope_plan_create(&desc, &plan) != ROPE_OK)
        return 4;
    rope_args args = ROPE_ARGS_INIT;
    args.batch = 2;
    args.tokens = 1;
    args.q = (rope_tensor){.in = memory, .out = memory, .heads = 1};
    args.q.in_stride[0] = args.q.out_stride[0] = 1ll << 40;
    args.q.in_stride[1] = args.q.in_stride[2] = args.q.out_stride[1] = args.q.out_stride[2] = 64;
    args.q.in_stride[3] = args.q.out_stride[3] = 1;
    if (rope_apply(plan, &args) != ROPE_OK)
        return 1;
    if (rope_device_synchronize(device) != ROPE_ERROR_DEVICE ||
        !strstr(rope_last_error(), "illegal memory access"))
        return 2;
    if (rope_apply(plan, &args) != ROPE_ERROR_DEVICE ||
        !strstr(rope_last_error(), "illegal memory access"))
        return 3;
    rope_plan_destroy(plan);
    rope_device_close(device);
    return 0;
}

__attribute__((constructor)) static void fault_if_asked(void) {
    if (getenv("ROPE_TEST_FAULT"))
        _exit(fault());
}

/* ROCm may answer a bad pointer itself: "Memory access fault by GPU node", then abort(). */
static int is_ended_by_runtime(int outcome) {
#ifdef __HIP_PLATFORM_AMD__
    int end = WIFSIGNALED(outcome) ? WTERMSIG(outcome) : WEXITSTATUS(outcome) - 128;
    return end == SIGABRT || end == SIGSEGV;
#else
    (void)outcome;
    return 0;
#endif
}

TEST(faults, sticky_error_is_a_status_with_its_text) {
    static fixture f;
    fixture_open(&f, 0, FIXTURE_PLAIN);
    fixture_close(&f);
    int outcome = system("ROPE_TEST_FAULT=1 /proc/$PPID/exe");
    if (is_ended_by_runtime(outcome))
        SKIP("the runtime ends a process with a bad pointer");
    CHECK(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0, "step %d of fault() failed",
          outcome >> 8);
}
