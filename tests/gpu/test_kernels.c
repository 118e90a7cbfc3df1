/* Which kernel a descriptor gets, by the name that users see, and each on request. */
#include "tests/gpu/fixture.h"

#include <stdio.h>
#include <string.h>

static rope_desc with(rope_desc desc, int32_t mode, int32_t direction, int32_t rotary_dim) {
    if (mode == ROPE_ANGLE_TABLE) {
        desc.rope_theta = 0;
        desc.table_width = ROPE_TABLE_HALF;
    }
    desc.angle_mode = mode;
    desc.direction = direction;
    desc.rotary_dim = rotary_dim;
    return desc;
}

static void is_named(const rope_desc *desc, const char *name) {
    char expected[64];
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_OK, rope_plan_create(desc, &plan));
    snprintf(expected, sizeof expected, "%s:%s", GPU_BACKEND_NAME, name);
    CHECK(strcmp(rope_plan_kernel(plan), expected) == 0, "the kernel is %s, not %s",
          rope_plan_kernel(plan), expected);
    rope_plan_destroy(plan);
}

TEST(kernels, names_follow_the_descriptor) {
    static fixture f;
    fixture_open(&f, 0, FIXTURE_AXES_3);
    is_named(&f.desc, "vector");
    fixture_close(&f);
    fixture_open(&f, 0, FIXTURE_PLAIN);
    is_named(&f.desc, "plain");
    rope_desc desc = with(f.desc, ROPE_ANGLE_TABLE, ROPE_FORWARD, 0);
    is_named(&desc, "window");
    desc = with(f.desc, ROPE_ANGLE_TABLE, ROPE_INVERSE, 0);
    is_named(&desc, "vector");
    desc = with(f.desc, ROPE_ANGLE_EXACT, ROPE_FORWARD, FIXTURE_DIM - 2);
    is_named(&desc, "generic");
    fixture_close(&f);
}

TEST(kernels, each_on_request_gives_the_same_bits) {
    static const char *const names[] = {"plain",  "window", "vector", "generic",
                                        "narrow", "wide",   "deep",   "single_head"};
    static fixture f;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        fixture_open(&f, 0, FIXTURE_PLAIN);
        f.desc.kernel = names[i];
        is_named(&f.desc, names[i]);
        rope_plan *plan = NULL;
        CHECK_STATUS(ROPE_OK, rope_plan_create(&f.desc, &plan));
        rope_args args = fixture_args(&f, NULL);
        CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
        fixture_check(&f, NULL, names[i]);
        rope_plan_destroy(plan);
        fixture_close(&f);
    }
}

/* Asked for by name, a kernel says which field it does not take. */
static void is_declined(rope_desc desc, const char *name, const char *why) {
    rope_plan *plan = NULL;
    desc.kernel = name;
    CHECK_STATUS(ROPE_ERROR_UNSUPPORTED, rope_plan_create(&desc, &plan));
    CHECK(strstr(rope_last_error(), why), "\"%s\" is not told: %s", why, rope_last_error());
    CHECK(plan == NULL, "a plan was made");
}

TEST(kernels, one_that_does_not_fit_says_why) {
    static fixture f;
    fixture_open(&f, 0, FIXTURE_AXES_3);
    is_declined(f.desc, "plain", "there are several axes");
    is_declined(f.desc, "window", "there are several axes");
    fixture_close(&f);
    fixture_open(&f, 0, FIXTURE_MIXED);
    is_declined(f.desc, "plain", "pairing_in is not pairing_out");
    fixture_close(&f);
    fixture_open(&f, 0, FIXTURE_PLAIN);
    is_declined(with(f.desc, ROPE_ANGLE_TABLE, ROPE_FORWARD, 0), "plain", "angle_mode is table");
    is_declined(with(f.desc, ROPE_ANGLE_TABLE, ROPE_INVERSE, 0), "window", "direction is inverse");
    is_declined(with(f.desc, ROPE_ANGLE_F32, ROPE_FORWARD, 0), "window", "angle_mode is f32");
    is_declined(with(f.desc, ROPE_ANGLE_EXACT, ROPE_FORWARD, FIXTURE_DIM - 2), "vector",
                "rotary_dim is no multiple of 4");
    f.desc.arithmetic = ROPE_ARITHMETIC_MODEL_DTYPE;
    is_declined(f.desc, "plain", "arithmetic is model_dtype");
    fixture_close(&f);
}
