/* Memory of two devices: that of the other is never read wrongly, and one without memory leaves the
 * other working. */
#include "tests/gpu/fixture.h"

#include <string.h>

static fixture_pair pair;

/* Copies by a device of memory that the other has: refused, or of the right bytes. */
static void copy_across(int device) {
    static uint16_t pattern[FIXTURE_ELEMENTS], found[FIXTURE_ELEMENTS];
    const fixture *f = &pair.on[device], *other = &pair.on[!device];
    memset(found, 0xa5, sizeof found);
    rope_status status = rope_device_copy_out(f->device, found, other->memory, sizeof found);
    CHECK(status != ROPE_OK || memcmp(found, other->in, sizeof found) == 0,
          "device %d read other bytes", device);
    memset(pattern, 0x5a, sizeof pattern);
    status = rope_device_copy_in(f->device, other->memory, pattern, sizeof pattern);
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(other->device, found, other->memory, sizeof found));
    CHECK(memcmp(found, status == ROPE_OK ? pattern : other->in, sizeof found) == 0,
          "what device %d wrote, or was refused, is not what is there", device);
    CHECK_STATUS(ROPE_OK,
                 rope_device_copy_in(other->device, other->memory, other->in, sizeof found));
}

TEST(device_memory, copies_across_are_right_or_refused) {
    fixture_pair_open(&pair, FIXTURE_PLAIN);
    for (int device = 0; device < 2; device++)
        copy_across(device);
    for (int device = 0; device < 2; device++) {
        CHECK_STATUS(ROPE_OK, fixture_pair_apply(&pair, device));
        fixture_check(&pair.on[device], pair.stream[device], "behind copies across");
    }
    fixture_pair_close(&pair);
}

enum { TAKEN_MOST = 200, LARGEST_BITS = 40, SMALLEST_BITS = 9 };

/* All that a device has, in pieces that halve. */
static int take_all(rope_device *device, void *taken[TAKEN_MOST]) {
    int count = 0;
    for (int bits = LARGEST_BITS; bits >= SMALLEST_BITS; bits--) {
        rope_status status = ROPE_OK;
        while (count < TAKEN_MOST && status == ROPE_OK) {
            status = rope_device_alloc(device, (size_t)1 << bits, &taken[count]);
            CHECK(status == ROPE_OK || status == ROPE_ERROR_OUT_OF_MEMORY, "%s", rope_last_error());
            count += status == ROPE_OK;
        }
    }
    CHECK(count < TAKEN_MOST, "%d pieces did not fill the device", count);
    return count;
}

/* A plan's first call, on a device that has room. */
static void check_new_plan(int device, const char *what) {
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_OK, rope_plan_create(&pair.on[device].desc, &plan));
    rope_args args = fixture_args(&pair.on[device], pair.stream[device]);
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    fixture_check(&pair.on[device], pair.stream[device], what);
    rope_plan_destroy(plan);
}

TEST(device_memory, a_full_device_leaves_the_other_working) {
    static void *taken[TAKEN_MOST];
    fixture_pair_open(&pair, FIXTURE_PLAIN);
    for (int full = 0; full < 2; full++) {
        rope_device *device = pair.on[full].device;
        rope_plan *plan = NULL;
        int count = take_all(device, taken);
        rope_status status = rope_plan_create(&pair.on[full].desc, &plan);
        CHECK(status == ROPE_OK || status == ROPE_ERROR_OUT_OF_MEMORY, "%s", rope_last_error());
        rope_plan_destroy(plan);
        check_new_plan(!full, "while the other device is full");
        CHECK_STATUS(ROPE_OK, fixture_pair_apply(&pair, full));
        fixture_check(&pair.on[full], pair.stream[full], "a plan from before, on a full device");
        while (count > 0)
            CHECK_STATUS(ROPE_OK, rope_device_free(device, taken[--count]));
        check_new_plan(full, "on a device that was full");
    }
    fixture_pair_close(&pair);
}
