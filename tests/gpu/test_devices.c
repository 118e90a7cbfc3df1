/* Several devices: a plan runs on its own, and the caller's current device stays what it was. */
#include "tests/gpu/fixture.h"

TEST(devices, plans_run_on_their_own) {
    static fixture f;
    int count = 0, current = -1;
    fixture_open(&f, 0, FIXTURE_PLAIN);
    fixture_close(&f);
    CHECK_GPU(gpuGetDeviceCount(&count));
    if (count < 2)
        SKIP("one device");
    for (int device = 0; device < count; device++) {
        int other = (device + 1) % count;
        gpuStream_t stream;
        CHECK_GPU(gpuSetDevice(device));
        CHECK_GPU(gpuStreamCreateWithFlags(&stream, gpuStreamNonBlocking));
        CHECK_GPU(gpuSetDevice(other));
        fixture_open(&f, device, FIXTURE_PLAIN);
        rope_plan *plan = NULL;
        CHECK_STATUS(ROPE_OK, rope_plan_create(&f.desc, &plan));
        rope_args args = fixture_args(&f, stream);
        CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
        CHECK_STATUS(ROPE_OK, rope_device_synchronize(f.device));
        CHECK_GPU(gpuGetDevice(&current));
        CHECK(current == other, "the current device is %d, not %d", current, other);
        fixture_check(&f, stream, "on a device that is not the current one");
        rope_plan_destroy(plan);
        fixture_close(&f);
        CHECK_GPU(gpuGetDevice(&current));
        CHECK(current == other, "behind everything the current device is %d", current);
        CHECK_GPU(gpuStreamDestroy(stream));
    }
    CHECK_GPU(gpuSetDevice(0));
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
