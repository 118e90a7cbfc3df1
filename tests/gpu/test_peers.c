/* Memory of another CUDA device: refused at a plan's first call, and served where the caller has
 * enabled peer access. */
#include "tests/gpu/fixture.h"

#include <string.h>

static fixture_pair pair;

/* The call of a device's plan on the tensors and ids of the other. */
static rope_status apply_across(const rope_plan *plan, int device) {
    rope_args args = fixture_args(&pair.on[!device], pair.stream[device]);
    return rope_apply(plan, &args);
}

static void is_refused(int device) {
    const char *told = device ? "allowed is memory that cuda device 1 reaches"
                              : "allowed is memory that cuda device 0 reaches";
    rope_args args = fixture_args(&pair.on[device], pair.stream[device]);
    CHECK_GPU(cudaSetDevice(device));
    CHECK(gpu_is_out_of_reach(device, pair.on[!device].memory),
          "the runtime does not say that memory of device %d is out of reach of device %d", !device,
          device);
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, apply_across(pair.plan[device], device));
    CHECK(strstr(rope_last_error(), "q.in is 0x") && strstr(rope_last_error(), told), "%s",
          rope_last_error());
    args.position_ids = pair.on[!device].ids;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_apply(pair.plan[device], &args));
    CHECK(strstr(rope_last_error(), "position_ids is 0x"), "%s", rope_last_error());
    CHECK_STATUS(ROPE_OK, fixture_pair_apply(&pair, device));
    fixture_check(&pair.on[device], pair.stream[device], "behind memory that was refused");
}

TEST(peers, memory_of_another_device_is_refused) {
    fixture_pair_open(&pair, FIXTURE_PLAIN);
    for (int device = 0; device < 2; device++)
        is_refused(device);
    fixture_pair_close(&pair);
}

static void is_served(int device) {
    CHECK_GPU(cudaSetDevice(device));
    CHECK_GPU(cudaDeviceEnablePeerAccess(!device, 0));
    CHECK_STATUS(ROPE_OK, apply_across(pair.plan[device], device));
    fixture_check(&pair.on[!device], pair.stream[device], "by peer access");
    CHECK_GPU(cudaDeviceDisablePeerAccess(!device));
}

/* Where the hardware has none, it stays refused. */
TEST(peers, memory_of_another_device_is_served_by_peer_access) {
    fixture_pair_open(&pair, FIXTURE_PLAIN);
    for (int device = 0; device < 2; device++) {
        int possible = 0;
        CHECK_GPU(cudaDeviceCanAccessPeer(&possible, device, !device));
        (possible ? is_served : is_refused)(device);
    }
    fixture_pair_close(&pair);
}
