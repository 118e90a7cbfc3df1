#include "common/abi.h"

#include "common/status.h"

#include <string.h>

/* The caller's struct_size, or 0 after an error. */
static size_t size_of(const void *given, size_t full_size, const char *name) {
    size_t size;
    memcpy(&size, given, sizeof size);
    if (size >= sizeof size && size <= ROPE_MAX_STRUCT_SIZE)
        return size;
    rope_fail(ROPE_ERROR_ABI, "%s.struct_size is %zu; allowed is sizeof(%s), here %zu", name, size,
              name, full_size);
    return 0;
}

rope_status rope_abi_read(void *full, size_t full_size, const void *given, const char *name) {
    if (!given)
        return rope_fail_null(name);
    size_t size = size_of(given, full_size, name);
    if (size == 0)
        return ROPE_ERROR_ABI;
    const unsigned char *bytes = given;
    for (size_t i = full_size; i < size; i++)
        if (bytes[i])
            return rope_fail(
                ROPE_ERROR_ABI,
                "%s.struct_size is %zu and byte %zu is set; allowed is 0 beyond the %zu bytes that "
                "this library knows",
                name, size, i, full_size);
    memset(full, 0, full_size);
    memcpy(full, given, size < full_size ? size : full_size);
    memcpy(full, &full_size, sizeof full_size);
    return ROPE_OK;
}

rope_status rope_abi_write(void *given, const void *full, size_t full_size, const char *name) {
    size_t size = size_of(given, full_size, name);
    if (size == 0)
        return ROPE_ERROR_ABI;
    if (size > full_size)
        size = full_size;
    memcpy((char *)given + sizeof size, (const char *)full + sizeof size, size - sizeof size);
    return ROPE_OK;
}
