/*
 * What the tests of streams, graphs and devices share: a small call whose tensors and ids lie on a
 * GPU, and the CPU's result of the same call; the same on two GPUs. Written in the names of
 * backends/gpu/platform/runtime.h, so that every GPU backend compiles them.
 */
#ifndef ROPEKIT_TESTS_GPU_FIXTURE_H
#define ROPEKIT_TESTS_GPU_FIXTURE_H

#include "tests/support/harness.h"

#include "backends/gpu/platform/runtime.h"

enum { FIXTURE_TOKENS = 37, FIXTURE_Q = 4, FIXTURE_K = 2, FIXTURE_DIM = 64, FIXTURE_AXES = 3 };
enum {
    FIXTURE_ELEMENTS = FIXTURE_TOKENS * (FIXTURE_Q + FIXTURE_K) * FIXTURE_DIM,
    FIXTURE_IDS = FIXTURE_AXES * FIXTURE_TOKENS
};

/* Descriptors that take different kernels. */
enum { FIXTURE_PLAIN, FIXTURE_WIDE, FIXTURE_AXES_3, FIXTURE_MIXED, FIXTURE_GENERIC, FIXTURE_KINDS };

typedef struct fixture {
    rope_desc desc; /* bf16, of the GPU backend under test */
    rope_device *device;
    uint16_t *memory; /* on the device: in, then out */
    int64_t *ids;     /* on the device */
    int64_t host_ids[FIXTURE_IDS];
    uint16_t in[FIXTURE_ELEMENTS], out[FIXTURE_ELEMENTS], expected[FIXTURE_ELEMENTS];
} fixture;

/* Skips the test where the device is missing, unless ROPE_TEST_REQUIRE names the backend. */
rope_device *fixture_device(int32_t index);
void fixture_open(fixture *f, int32_t device, int kind);
void fixture_close(fixture *f);

/* Ids that differ with every round, and what the CPU makes of them. */
void fixture_round(fixture *f, int round);
/* The call on device memory. */
rope_args fixture_args(const fixture *f, gpuStream_t stream);
/* Copies the ids of the round, in stream order. */
void fixture_send_ids(const fixture *f, gpuStream_t stream);
/* Brings back `out` when the stream has ended and compares. */
void fixture_check(fixture *f, gpuStream_t stream, const char *what);

/* A call that is submitted between these becomes a graph; status: what the call returned. */
void fixture_capture(gpuStream_t stream);
gpuGraphExec_t fixture_captured(gpuStream_t stream, rope_status status);

/* Both of two devices, a plan of each and a stream that is not the default one. */
typedef struct fixture_pair {
    fixture on[2];
    rope_plan *plan[2];
    gpuStream_t stream[2];
} fixture_pair;

/* Skips the test where there is no second device, unless ROPE_TEST_REQUIRE names the backend and
 * ROPE_TEST_DEVICE is 1 or more. */
void fixture_require_two(void);
void fixture_pair_open(fixture_pair *p, int kind);
void fixture_pair_close(fixture_pair *p);
/* Submits the call of a device's plan on its stream. */
rope_status fixture_pair_apply(const fixture_pair *p, int device);
/* Fails the test where another device is the thread's current one. */
void fixture_check_current(int device, const char *behind);

#define CHECK_GPU(call)                                                                            \
    do {                                                                                           \
        gpuError_t gpu_error = (call);                                                             \
        CHECK(gpu_error == gpuSuccess, "%s", gpuGetErrorString(gpu_error));                        \
    } while (0)

#endif
