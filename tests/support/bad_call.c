#include "tests/support/bad_call.h"

#include "tests/support/bad_field.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <string.h>

void bad_memory_make(bad_memory *m) {
    void *memory = NULL;
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device_open(), BAD_BYTES, &memory));
    m->device = memory;
    for (int i = 0; i < BAD_BYTES; i++)
        m->before[i] = (unsigned char)(i * 7 % 61);
}

void bad_memory_free(const bad_memory *m) {
    CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), m->device));
}

char *bad_memory_part(const bad_memory *m, int part) {
    return m->device + (size_t)part * BAD_PART;
}

unsigned char *bad_memory_before(bad_memory *m, int part) {
    return m->before + (size_t)part * BAD_PART;
}

void bad_memory_put(const bad_memory *m) {
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), m->device, m->before, BAD_BYTES));
}

static void check_untouched(const bad_memory *m) {
    static unsigned char after[BAD_BYTES];
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device_open(), after, m->device, BAD_BYTES));
    CHECK(memcmp(after, m->before, BAD_BYTES) == 0, "a call that failed wrote something");
}

void bad_memory_good(const bad_memory *m, rope_status status) {
    if (status == ROPE_ERROR_UNSUPPORTED && device_is_provider())
        check_untouched(m);
    else
        CHECK_STATUS(ROPE_OK, status);
    bad_memory_put(m);
}

void bad_memory_check(const bad_memory *m, const char *field, const char *value) {
    bad_text_check(field, value);
    check_untouched(m);
}
