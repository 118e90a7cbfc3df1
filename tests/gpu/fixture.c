#include "tests/gpu/fixture.h"
#include "tests/support/required.h"

#include <stdlib.h>
#include <string.h>

static const uint8_t axes_of_pairs[FIXTURE_DIM / 2] = {0, 1, 2, 2, 1, 0, 1, 1};

static rope_desc describe(int32_t device, int kind) {
    rope_desc desc = ROPE_DESC_INIT;
    desc.backend = GPU_BACKEND_NAME;
    desc.device = device;
    desc.dtype = ROPE_BF16;
    desc.head_dim = FIXTURE_DIM;
    desc.rope_theta = 10000;
    if (kind == FIXTURE_WIDE)
        desc.kernel = "wide";
    if (kind == FIXTURE_AXES_3) {
        desc.axes = FIXTURE_AXES;
        desc.axis_layout = ROPE_AXES_CUSTOM;
        desc.pair_axis = axes_of_pairs;
    }
    if (kind == FIXTURE_MIXED) {
        desc.pairing_in = ROPE_PAIRING_INTERLEAVED;
        desc.pairing_out = ROPE_PAIRING_HALF_SPLIT;
    }
    if (kind == FIXTURE_GENERIC)
        desc.kernel = "generic";
    return desc;
}

rope_device *fixture_device(int32_t index) {
    rope_device *device = NULL;
    const rope_status status = rope_device_open(GPU_BACKEND_NAME, index, &device);
    if (!test_requires(GPU_BACKEND_NAME) && status != ROPE_OK)
        SKIP("%s", rope_last_error());
    CHECK_STATUS(ROPE_OK, status);
    return device;
}

void fixture_open(fixture *f, int32_t device, int kind) {
    memset(f, 0, sizeof *f);
    f->desc = describe(device, kind);
    f->device = fixture_device(device);
    for (int i = 0; i < FIXTURE_ELEMENTS; i++)
        f->in[i] = (uint16_t)(0x3f00 + i * 2654435761u % 0x200); /* 0.5 to 2 */
    void *memory = NULL;
    CHECK_STATUS(ROPE_OK, rope_device_alloc(f->device, 2 * sizeof f->in, &memory));
    f->memory = memory;
    CHECK_STATUS(ROPE_OK, rope_device_alloc(f->device, sizeof f->host_ids, &memory));
    f->ids = memory;
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(f->device, f->memory, f->in, sizeof f->in));
    fixture_round(f, 0);
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(f->device, f->ids, f->host_ids, sizeof f->host_ids));
}

void fixture_close(fixture *f) {
    CHECK_STATUS(ROPE_OK, rope_device_free(f->device, f->memory));
    CHECK_STATUS(ROPE_OK, rope_device_free(f->device, f->ids));
    rope_device_close(f->device);
}

static rope_args args_of(const uint16_t *in, uint16_t *out, const int64_t *ids) {
    rope_args args = ROPE_ARGS_INIT;
    const int64_t k = (int64_t)FIXTURE_TOKENS * FIXTURE_Q * FIXTURE_DIM;
    args.batch = 1;
    args.tokens = FIXTURE_TOKENS;
    args.q = (rope_tensor){.in = in, .out = out, .heads = FIXTURE_Q};
    args.k = (rope_tensor){.in = in + k, .out = out + k, .heads = FIXTURE_K};
    args.position_ids = ids;
    return args;
}

void fixture_round(fixture *f, int round) {
    for (int i = 0; i < FIXTURE_IDS; i++)
        f->host_ids[i] = (i * 7919ll + round * 104729ll) % 131072 - 100;
    rope_desc desc = f->desc;
    desc.backend = "cpu";
    desc.device = 0;
    desc.kernel = NULL;
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    rope_args args = args_of(f->in, f->expected, f->host_ids);
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    rope_plan_destroy(plan);
}

rope_args fixture_args(const fixture *f, gpuStream_t stream) {
    rope_args args = args_of(f->memory, f->memory + FIXTURE_ELEMENTS, f->ids);
    args.stream = stream;
    return args;
}

void fixture_send_ids(const fixture *f, gpuStream_t stream) {
    CHECK_GPU(
        gpuMemcpyAsync(f->ids, f->host_ids, sizeof f->host_ids, gpuMemcpyHostToDevice, stream));
}

void fixture_check(fixture *f, gpuStream_t stream, const char *what) {
    CHECK_GPU(gpuStreamSynchronize(stream));
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(f->device, f->out, f->memory + FIXTURE_ELEMENTS,
                                               sizeof f->out));
    CHECK(memcmp(f->out, f->expected, sizeof f->out) == 0, "%s: not the CPU's bits", what);
}

void fixture_capture(gpuStream_t stream) {
    CHECK_GPU(gpuStreamBeginCapture(stream, gpuStreamCaptureModeThreadLocal));
}

gpuGraphExec_t fixture_captured(gpuStream_t stream, rope_status status) {
    gpuGraph_t graph;
    gpuGraphExec_t exec;
    CHECK_GPU(gpuStreamEndCapture(stream, &graph));
    CHECK_STATUS(ROPE_OK, status);
    CHECK_GPU(gpuGraphInstantiate(&exec, graph));
    CHECK_GPU(gpuGraphDestroy(graph));
    return exec;
}

void fixture_require_two(void) {
    int count = 0;
    CHECK_GPU(gpuGetDeviceCount(&count));
    if (count < 2 && !(test_requires(GPU_BACKEND_NAME) && test_device() > 0))
        SKIP("one device");
    CHECK(count >= 2, "there is %d device; ROPE_TEST_DEVICE is %d", count, test_device());
}

void fixture_pair_open(fixture_pair *p, int kind) {
    fixture_open(&p->on[0], 0, kind);
    fixture_require_two();
    fixture_open(&p->on[1], 1, kind);
    for (int i = 0; i < 2; i++) {
        CHECK_STATUS(ROPE_OK, rope_plan_create(&p->on[i].desc, &p->plan[i]));
        CHECK_GPU(gpuSetDevice(i));
        CHECK_GPU(gpuStreamCreateWithFlags(&p->stream[i], gpuStreamNonBlocking));
    }
    CHECK_GPU(gpuSetDevice(0));
}

void fixture_pair_close(fixture_pair *p) {
    for (int i = 0; i < 2; i++) {
        CHECK_GPU(gpuStreamDestroy(p->stream[i]));
        rope_plan_destroy(p->plan[i]);
        fixture_close(&p->on[i]);
    }
    CHECK_GPU(gpuSetDevice(0));
}

rope_status fixture_pair_apply(const fixture_pair *p, int device) {
    rope_args args = fixture_args(&p->on[device], p->stream[device]);
    return rope_apply(p->plan[device], &args);
}

void fixture_check_current(int device, const char *behind) {
    int current = -1;
    CHECK_GPU(gpuGetDevice(&current));
    CHECK(current == device, "the current device is %d, not %d, behind %s", current, device,
          behind);
}
