/* The rest of the API: versions, struct sizes, information, memory, time, the log. */
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TEST_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TEST_SANITIZED
#endif

#ifdef TEST_SANITIZED
/* device_memory asks for more than there is, which a sanitizer takes for an error by default. Its
 * runtime may be a shared library. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void);

const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

const char *__tsan_default_options(void) {
    return "allocator_may_return_null=1";
}
#endif

TEST(api, version) {
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", ROPE_VERSION_MAJOR, ROPE_VERSION_MINOR,
             ROPE_VERSION_PATCH);
    CHECK(strcmp(rope_version(), text) == 0, "version is %s, the header's is %s", rope_version(),
          text);
}

TEST(api, status_strings) {
    static const char *const names[ROPE_STATUS_COUNT] = {
        [ROPE_OK] = "ROPE_OK",
        [ROPE_ERROR_INVALID_VALUE] = "ROPE_ERROR_INVALID_VALUE",
        [ROPE_ERROR_NULL_POINTER] = "ROPE_ERROR_NULL_POINTER",
        [ROPE_ERROR_MISALIGNED] = "ROPE_ERROR_MISALIGNED",
        [ROPE_ERROR_OVERLAP] = "ROPE_ERROR_OVERLAP",
        [ROPE_ERROR_OVERFLOW] = "ROPE_ERROR_OVERFLOW",
        [ROPE_ERROR_ABI] = "ROPE_ERROR_ABI",
        [ROPE_ERROR_OUT_OF_MEMORY] = "ROPE_ERROR_OUT_OF_MEMORY",
        [ROPE_ERROR_UNSUPPORTED] = "ROPE_ERROR_UNSUPPORTED",
        [ROPE_ERROR_NO_BACKEND] = "ROPE_ERROR_NO_BACKEND",
        [ROPE_ERROR_NO_DEVICE] = "ROPE_ERROR_NO_DEVICE",
        [ROPE_ERROR_POSITION_RANGE] = "ROPE_ERROR_POSITION_RANGE",
        [ROPE_ERROR_DEVICE] = "ROPE_ERROR_DEVICE"};
    for (rope_status s = 0; s < ROPE_STATUS_COUNT; s++)
        CHECK(strcmp(rope_status_string(s), names[s]) == 0, "status %d is %s", s,
              rope_status_string(s));
    static const rope_status unknown[] = {-1, ROPE_STATUS_COUNT, INT32_MAX, INT32_MIN};
    for (int i = 0; i < 4; i++)
        CHECK(strcmp(rope_status_string(unknown[i]), "unknown status") == 0, "status %d is %s",
              unknown[i], rope_status_string(unknown[i]));
}

/* A program built against an older header has a shorter struct, one against a newer a longer. */
TEST(api, struct_sizes) {
    union {
        rope_desc desc;
        unsigned char bytes[ROPE_MAX_STRUCT_SIZE];
    } longer;
    rope_plan *plan = NULL;
    memset(&longer, 0, sizeof longer);
    longer.desc = device_desc();
    longer.desc.struct_size = sizeof longer;
    CHECK_STATUS(ROPE_OK, rope_plan_create(&longer.desc, &plan));
    rope_plan_destroy(plan);
    longer.bytes[sizeof longer - 1] = 1;
    CHECK_STATUS(ROPE_ERROR_ABI, rope_plan_create(&longer.desc, &plan));
    CHECK(strstr(rope_last_error(), "struct_size"), "%s", rope_last_error());
    static const size_t absurd[] = {0, 7, ROPE_MAX_STRUCT_SIZE + 1, SIZE_MAX};
    for (int i = 0; i < 4; i++) {
        longer.desc.struct_size = absurd[i];
        CHECK_STATUS(ROPE_ERROR_ABI, rope_plan_create(&longer.desc, &plan));
    }
}

TEST(api, a_shorter_descriptor_takes_defaults) {
    rope_desc desc = {.dtype = ROPE_F32, .head_dim = 64};
    double full[32], part[32];
    desc.struct_size = sizeof desc;
    CHECK_STATUS(ROPE_OK, rope_frequencies(&desc, 0, full, 32, NULL));
    desc.rope_type = 99;
    desc.struct_size = offsetof(rope_desc, rope_type);
    CHECK_STATUS(ROPE_OK, rope_frequencies(&desc, 0, part, 32, NULL));
    for (int i = 0; i < 32; i++)
        CHECK(full[i] == part[i], "pair %d has %.17g, not %.17g", i, part[i], full[i]);
}

TEST(api, args_sizes) {
    union {
        rope_args args;
        unsigned char bytes[sizeof(rope_args) + 8];
    } longer;
    rope_desc desc = device_desc();
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    memset(&longer, 0, sizeof longer);
    longer.args.struct_size = sizeof longer;
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &longer.args));
    longer.bytes[sizeof longer - 1] = 1;
    CHECK_STATUS(ROPE_ERROR_ABI, rope_apply(plan, &longer.args));
    longer.args.struct_size = offsetof(rope_args, cos);
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &longer.args));
    longer.args.struct_size = 0;
    CHECK_STATUS(ROPE_ERROR_ABI, rope_apply(plan, &longer.args));
    rope_plan_destroy(plan);
}

TEST(api, plan_names_its_kernel) {
    rope_desc desc = device_desc();
    rope_plan *plan = NULL;
    char prefix[64];
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    snprintf(prefix, sizeof prefix, "%s:", device_backend());
    CHECK(strncmp(rope_plan_kernel(plan), prefix, strlen(prefix)) == 0, "kernel is %s",
          rope_plan_kernel(plan));
    CHECK(strstr(rope_plan_report(plan), "accepted, bitwise"), "report is %s",
          rope_plan_report(plan));
    rope_plan_destroy(plan);
    rope_plan_destroy(NULL);
    CHECK(!rope_plan_kernel(NULL) && !rope_plan_report(NULL), "a NULL plan has no kernel");
}

TEST(api, a_forced_kernel_is_taken_or_an_error) {
    rope_desc desc = device_desc();
    rope_plan *plan = NULL;
    const char *name;
    for (int k = 0; (name = device_kernel(k)); k++) {
        desc.kernel = name;
        rope_status status = rope_plan_create(&desc, &plan);
        if (status == ROPE_ERROR_UNSUPPORTED && strcmp(name, "scalar") != 0)
            continue;
        CHECK_STATUS(ROPE_OK, status);
        CHECK(strstr(rope_plan_kernel(plan), name), "%s was forced, %s is bound", name,
              rope_plan_kernel(plan));
        rope_plan_destroy(plan);
    }
    static const char *const unknown[] = {"nonesuch", ""};
    for (int i = 0; i < 2; i++) {
        char text[32];
        snprintf(text, sizeof text, "kernel is \"%s\"", unknown[i]);
        desc.kernel = unknown[i];
        CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_plan_create(&desc, &plan));
        CHECK(strstr(rope_last_error(), text) && strstr(rope_last_error(), device_kernel(0)), "%s",
              rope_last_error());
    }
}

TEST(api, backends) {
    int32_t count = rope_backend_count(), found = 0;
    rope_backend_info info = {.struct_size = sizeof info};
    for (int32_t i = 0; i < count; i++) {
        CHECK_STATUS(ROPE_OK, rope_backend_get(i, &info));
        CHECK(info.name && info.origin && info.reason, "backend %d lacks a text", i);
        CHECK((info.status == ROPE_OK) == (info.device_count > 0), "%s: %s with %d devices",
              info.name, rope_status_string(info.status), info.device_count);
        CHECK((info.status == ROPE_OK) == (info.reason[0] == 0), "%s: reason \"%s\"", info.name,
              info.reason);
        found |= strcmp(info.name, "cpu") == 0;
    }
    CHECK(found, "no backend is named cpu");
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_backend_get(-1, &info));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_backend_get(count, &info));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_backend_get(0, NULL));
}

/* A shorter struct of an older caller is filled no further than it reaches. */
TEST(api, short_info_structs) {
    rope_device_info info;
    memset(&info, 0x5a, sizeof info);
    info.struct_size = 0;
    CHECK_STATUS(ROPE_ERROR_ABI, rope_device_get(device_open(), &info));
    info.struct_size = offsetof(rope_device_info, memory_bytes);
    CHECK_STATUS(ROPE_OK, rope_device_get(device_open(), &info));
    CHECK(info.memory_bytes == 0x5a5a5a5a5a5a5a5a, "memory_bytes was written");
    CHECK(info.struct_size == offsetof(rope_device_info, memory_bytes), "struct_size was written");
    CHECK(info.name[0] != 0x5a, "name was not written");
}

TEST(api, devices) {
    rope_device *device = NULL;
    rope_device_info info = {.struct_size = sizeof info};
    CHECK_STATUS(ROPE_OK, rope_device_get(device_open(), &info));
    CHECK(strcmp(info.backend, device_backend()) == 0, "backend is %s", info.backend);
    CHECK(info.name[0] && info.features[0] && info.compute_units > 0, "name \"%s\", \"%s\", %d",
          info.name, info.features, info.compute_units);
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_device_open(device_backend(), -1, &device));
    CHECK_STATUS(ROPE_ERROR_NO_DEVICE, rope_device_open(device_backend(), 12345, &device));
    CHECK(strstr(rope_last_error(), "12345"), "%s", rope_last_error());
    CHECK_STATUS(ROPE_ERROR_NO_BACKEND, rope_device_open("nonesuch", 0, &device));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_device_open(device_backend(), 0, NULL));
    CHECK(device == NULL, "a failed rope_device_open wrote its result");
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_device_get(NULL, &info));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_device_get(device_open(), NULL));
    rope_device_close(NULL);
}

TEST(api, device_memory) {
    enum { BYTES = 100003 };
    static unsigned char out[BYTES], back[BYTES];
    rope_device *device = device_open();
    void *memory = &device;
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device, 0, &memory));
    CHECK(memory == NULL, "0 bytes give %p", memory);
    CHECK_STATUS(ROPE_OK, rope_device_free(device, NULL));
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device, BYTES, &memory));
    CHECK((uintptr_t)memory % 64 == 0, "memory at %p is not 64-byte aligned", memory);
    for (int i = 0; i < BYTES; i++)
        out[i] = (unsigned char)(i * 31 >> 3);
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device, memory, out, BYTES));
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(device));
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device, back, memory, BYTES));
    CHECK(memcmp(out, back, BYTES) == 0, "what comes back is not what went in");
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device, NULL, NULL, 0));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_device_copy_in(device, NULL, out, 1));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_device_copy_out(device, back, NULL, 1));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_device_alloc(device, 8, NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_device_alloc(NULL, 8, &memory));
    CHECK_STATUS(ROPE_OK, rope_device_free(device, memory));
    CHECK_STATUS(ROPE_ERROR_OUT_OF_MEMORY, rope_device_alloc(device, SIZE_MAX / 2, &memory));
}

static void time_calls(rope_device *device, int32_t kind) {
    rope_desc desc = device_desc();
    rope_plan *plan = NULL;
    void *memory = NULL;
    enum { BYTES = 4 * 2 * 64 * 4 };
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device, BYTES, &memory));
    unsigned char zero[BYTES] = {0};
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device, memory, zero, BYTES));
    rope_args args = {.struct_size = sizeof args,
                      .batch = 1,
                      .tokens = 4,
                      .q = {.in = memory, .out = memory, .heads = 2}};
    rope_timing timing = {.struct_size = sizeof timing,
                          .kind = kind,
                          .iterations = 10,
                          .plan = plan,
                          .args = &args,
                          .args_count = 1};
    CHECK_STATUS(ROPE_OK, rope_time(device, &timing));
    CHECK(timing.seconds > 0 && isfinite(timing.seconds), "one run takes %g s", timing.seconds);
    timing.iterations = 0;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_time(device, &timing));
    timing.iterations = 1;
    timing.graph = 2;
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_time(device, &timing));
    timing.graph = 0;
    timing.plan = NULL;
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_time(device, &timing));
    CHECK_STATUS(ROPE_OK, rope_device_free(device, memory));
    rope_plan_destroy(plan);
}

TEST(api, timing_of_calls) {
    rope_device *device = device_open();
    time_calls(device, ROPE_TIME_APPLY);
    time_calls(device, ROPE_TIME_KERNEL);
    rope_timing timing = {.struct_size = sizeof timing, .kind = 9, .iterations = 1};
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_time(device, &timing));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_time(NULL, &timing));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_time(device, NULL));
}

/* The floors of the benchmarks: a copy copies every byte, an update changes every element,
 * of two bytes at most. */
enum { FLOOR_PART = 8192 * 4 };

static const char *floor_operation(int32_t kind) {
    return kind == ROPE_TIME_COPY ? "copy" : "update";
}

static void check_floor(rope_device *device, int32_t kind, int32_t candidate, void *memory,
                        size_t bytes) {
    static unsigned char before[2 * FLOOR_PART], after[2 * FLOOR_PART];
    const char *name = rope_device_kernel(device, floor_operation(kind), candidate);
    unsigned char *target = after + FLOOR_PART;
    rope_timing timing = {.struct_size = sizeof timing,
                          .kind = kind,
                          .iterations = 3,
                          .args_count = 1,
                          .target = (char *)memory + FLOOR_PART,
                          .source = kind == ROPE_TIME_COPY ? memory : NULL,
                          .bytes = (int64_t)bytes,
                          .candidate = candidate};
    for (int i = 0; i < 2 * FLOOR_PART; i++)
        before[i] = (unsigned char)(i % 251);
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device, memory, before, sizeof before));
    CHECK_STATUS(ROPE_OK, rope_time(device, &timing));
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device, after, memory, sizeof after));
    CHECK(memcmp(after, before, FLOOR_PART) == 0, "%s changed its source", name);
    if (kind == ROPE_TIME_COPY)
        CHECK(memcmp(target, before, bytes) == 0, "%s does not copy %zu bytes", name, bytes);
    else
        for (size_t i = 0; i < bytes; i += 2)
            CHECK(memcmp(target + i, before + FLOOR_PART + i, 2) != 0,
                  "%s left out byte %zu of %zu", name, i, bytes);
    CHECK(memcmp(target + bytes, before + FLOOR_PART + bytes, FLOOR_PART - bytes) == 0,
          "%s wrote past its end", name);
}

TEST(api, timing_of_copies) {
    rope_device *device = device_open();
    void *memory = NULL;
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device, 2 * FLOOR_PART, &memory));
    for (int32_t kind = ROPE_TIME_COPY; kind <= ROPE_TIME_UPDATE; kind++)
        for (int32_t i = 0; rope_device_kernel(device, floor_operation(kind), i); i++) {
            check_floor(device, kind, i, memory, 4099 * 4);
            check_floor(device, kind, i, memory, 1025 * 16);
        }
    CHECK(rope_device_kernel(device, "copy", 0), "there is no copy kernel");
    CHECK(rope_device_kernel(device, "update", 0), "there is no update kernel");
    CHECK(!rope_device_kernel(device, "copy", 999), "there is a 999th copy kernel");
    CHECK(!rope_device_kernel(device, "nonesuch", 0) && !rope_device_kernel(NULL, "copy", 0) &&
              !rope_device_kernel(device, NULL, 0) && !rope_device_kernel(device, "copy", -1),
          "a kernel where there is none");
    CHECK_STATUS(ROPE_OK, rope_device_free(device, memory));
}

static void count_line(void *user, int32_t level, const char *text) {
    int *lines = user;
    lines[level == 1 || level == 2 ? level : 0]++;
    if (text[0] == 0 || strchr(text, '\n'))
        lines[0]++;
}

TEST(api, log) {
    int lines[3] = {0};
    rope_desc desc = device_desc();
    rope_plan *plan = NULL;
    setenv("ROPE_VERBOSE", "2", 1);
    rope_set_log(count_line, lines);
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    rope_plan_destroy(plan);
    CHECK(lines[1] > 0 && lines[2] > 0 && lines[0] == 0, "%d choices, %d candidates, %d others",
          lines[1], lines[2], lines[0]);
    setenv("ROPE_VERBOSE", "0", 1);
    memset(lines, 0, sizeof lines);
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    rope_plan_destroy(plan);
    rope_set_log(NULL, NULL);
    CHECK(lines[0] + lines[1] + lines[2] == 0, "%d lines where ROPE_VERBOSE is 0",
          lines[0] + lines[1] + lines[2]);
    unsetenv("ROPE_VERBOSE");
}
