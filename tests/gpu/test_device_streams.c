/* Streams and graphs of two devices. */
#include "tests/gpu/fixture.h"

#include <stdatomic.h>
#include <string.h>

static fixture_pair pair;

/* What follows is as if it had not been tried. */
TEST(device_streams, stream_of_the_other_device_is_refused) {
    fixture_pair_open(&pair, FIXTURE_PLAIN);
    for (int device = 0; device < 2; device++) {
        rope_args args = fixture_args(&pair.on[device], pair.stream[!device]);
        CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_apply(pair.plan[device], &args));
        CHECK(strstr(rope_last_error(), "stream is of "), "%s", rope_last_error());
    }
    for (int device = 0; device < 2; device++) {
        CHECK_STATUS(ROPE_OK, fixture_pair_apply(&pair, device));
        fixture_check(&pair.on[device], pair.stream[device], "behind a stream that was refused");
    }
    fixture_pair_close(&pair);
}

static void wait_for_release(void *flag) {
    while (!atomic_load((atomic_int *)flag))
        ;
}

TEST(device_streams, one_that_stands_still_holds_up_no_other) {
    fixture_pair_open(&pair, FIXTURE_PLAIN);
    for (int held = 0; held < 2; held++) {
        atomic_int released = 0;
        CHECK_GPU(gpuSetDevice(held));
        CHECK_GPU(gpuLaunchHostFunc(pair.stream[held], wait_for_release, &released));
        CHECK_STATUS(ROPE_OK, fixture_pair_apply(&pair, held));
        rope_status status = fixture_pair_apply(&pair, !held);
        if (status == ROPE_OK)
            status = rope_device_synchronize(pair.on[!held].device);
        atomic_store(&released, 1);
        CHECK_STATUS(ROPE_OK, status);
        for (int device = 0; device < 2; device++)
            fixture_check(&pair.on[device], pair.stream[device], "beside a device held up");
    }
    fixture_pair_close(&pair);
}

/* Captures while the other device is current; the plan's first call is the captured one. */
static gpuGraphExec_t capture(int device) {
    CHECK_GPU(gpuSetDevice(!device));
    fixture_capture(pair.stream[device]);
    const rope_status status = fixture_pair_apply(&pair, device);
    gpuGraphExec_t exec = fixture_captured(pair.stream[device], status);
    fixture_check_current(!device, "a capture");
    return exec;
}

static void replay_both(int kind, int32_t current) {
    fixture_pair_open(&pair, kind);
    gpuGraphExec_t exec[2] = {capture(0), capture(1)};
    CHECK_GPU(gpuSetDevice(current));
    for (int round = 1; round <= 5; round++) {
        for (int device = 0; device < 2; device++) {
            fixture *f = &pair.on[device];
            fixture_round(f, 2 * round + device);
            CHECK_STATUS(ROPE_OK,
                         rope_device_copy_in(f->device, f->ids, f->host_ids, sizeof f->host_ids));
        }
        for (int device = 0; device < 2; device++)
            CHECK_GPU(gpuGraphLaunch(exec[device], pair.stream[device]));
        for (int device = 0; device < 2; device++)
            fixture_check(&pair.on[device], pair.stream[device], "graphs of two devices");
        fixture_check_current(current, "replays");
    }
    for (int device = 0; device < 2; device++)
        CHECK_GPU(gpuGraphExecDestroy(exec[device]));
    fixture_pair_close(&pair);
}

TEST(device_streams, graphs_of_both_replay_with_other_ids) {
    for (int kind = 0; kind < FIXTURE_KINDS; kind++)
        for (int current = 0; current < 2; current++)
            replay_both(kind, current);
}
