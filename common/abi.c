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

/* Copies a prefix; what lies beyond full_size must be 0, what is missing becomes 0. The first byte
 * of `given` is byte `at` of the struct of that name and size. */
static rope_status copy_prefix(void *full, size_t full_size, const void *given, size_t given_size,
                               size_t at, const char *name, size_t size) {
    const unsigned char *bytes = given;
    for (size_t i = full_size; i < given_size; i++)
        if (bytes[i])
            return rope_fail(
                ROPE_ERROR_ABI,
                "%s.struct_size is %zu and byte %zu is set; allowed is 0 beyond the %zu bytes that "
                "this library knows",
                name, size, at + i, at + full_size);
    memset(full, 0, full_size);
    memcpy(full, given, given_size < full_size ? given_size : full_size);
    return ROPE_OK;
}

rope_status rope_abi_read(void *full, size_t full_size, const void *given, const char *name) {
    if (!given)
        return rope_fail_null(name);
    size_t size = size_of(given, full_size, name);
    if (size == 0)
        return ROPE_ERROR_ABI;
    rope_status status = copy_prefix(full, full_size, given, size, 0, name, size);
    if (status == ROPE_OK)
        memcpy(full, &full_size, sizeof full_size);
    return status;
}

/* A struct, and those that lie one in the other behind the size of it: `levels` in all. */
static rope_status read_levels(void *full, const size_t *full_size, const void *given,
                               const char *const *name, int levels) {
    if (levels == 1 || !given)
        return rope_abi_read(full, *full_size, given, *name);
    const size_t head = sizeof *full_size, size = size_of(given, *full_size, *name);
    if (size == 0)
        return ROPE_ERROR_ABI;
    if (size < 2 * head)
        return rope_fail(ROPE_ERROR_ABI, "%s.struct_size is %zu; allowed is sizeof(%s), here %zu",
                         *name, size, *name, *full_size);
    const char *inner = (const char *)given + head;
    const size_t inner_size = size_of(inner, full_size[1], name[1]), tail = head + inner_size;
    if (inner_size == 0)
        return ROPE_ERROR_ABI;
    if (tail > size)
        return rope_fail(ROPE_ERROR_ABI,
                         "%s.struct_size is %zu and that of the %s in it is %zu; allowed is at "
                         "most %zu",
                         *name, size, name[1], inner_size, size - head);
    rope_status status =
        read_levels((char *)full + head, full_size + 1, inner, name + 1, levels - 1);
    if (status == ROPE_OK)
        status = copy_prefix((char *)full + head + full_size[1], *full_size - head - full_size[1],
                             (const char *)given + tail, size - tail, tail, *name, size);
    if (status == ROPE_OK)
        memcpy(full, full_size, sizeof *full_size);
    return status;
}

rope_status rope_abi_read_embedding(void *full, size_t full_size, size_t inner_full_size,
                                    const void *given, const char *name, const char *inner_name) {
    return read_levels(full, (const size_t[]){full_size, inner_full_size}, given,
                       (const char *const[]){name, inner_name}, 2);
}

rope_status rope_abi_read_nested(void *full, const size_t full_size[3], const void *given,
                                 const char *const name[3]) {
    return read_levels(full, full_size, given, name, 3);
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
