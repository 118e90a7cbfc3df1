#include "common/abi.h"

#include "common/status.h"

#include <string.h>

rope_status rope_abi_read(void *full, size_t full_size, const void *given, const char *name) {
    if (!given)
        return rope_fail(ROPE_ERROR_NULL_POINTER, "%s is NULL", name);
    size_t size;
    memcpy(&size, given, sizeof size);
    if (size < sizeof size || size > (size_t)1 << 20)
        return rope_fail(ROPE_ERROR_ABI, "%s.struct_size is %zu; allowed is sizeof(%s), here %zu",
                         name, size, name, full_size);
    const unsigned char *bytes = given;
    for (size_t i = full_size; i < size; i++)
        if (bytes[i])
            return rope_fail(
                ROPE_ERROR_ABI,
                "%s.struct_size is %zu and byte %zu is set; this library knows %zu bytes", name,
                size, i, full_size);
    memset(full, 0, full_size);
    memcpy(full, given, size < full_size ? size : full_size);
    memcpy(full, &full_size, sizeof full_size);
    return ROPE_OK;
}

void rope_abi_write(void *given, const void *full, size_t full_size) {
    size_t size;
    memcpy(&size, given, sizeof size);
    if (size > full_size)
        size = full_size;
    if (size > sizeof size)
        memcpy((char *)given + sizeof size, (const char *)full + sizeof size, size - sizeof size);
}
