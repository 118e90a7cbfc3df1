/* The memory of calls that fail: parts of the device's, of which a call that fails writes nothing.
 */
#ifndef ROPEKIT_TESTS_BAD_CALL_H
#define ROPEKIT_TESTS_BAD_CALL_H

#include <ropekit/rope.h>

enum { BAD_PART = 8192, BAD_PARTS = 24, BAD_BYTES = BAD_PARTS * BAD_PART };

typedef struct bad_memory {
    char *device;
    unsigned char before[BAD_BYTES]; /* what it holds ahead of a call */
} bad_memory;

/* Allocates it and fills `before`. */
void bad_memory_make(bad_memory *m);
void bad_memory_free(const bad_memory *m);
char *bad_memory_part(const bad_memory *m, int part);
/* The same in `before`. */
unsigned char *bad_memory_before(bad_memory *m, int part);
/* Gives the device what `before` holds. */
void bad_memory_put(const bad_memory *m);

/* A call succeeded, or a provider declined it and nothing was written; what was written is taken
 * back. */
void bad_memory_good(const bad_memory *m, rope_status status);

/* A call has failed: the text names `field`, gives `value` unless that is NULL and says what is
 * allowed, and nothing was written. */
void bad_memory_check(const bad_memory *m, const char *field, const char *value);

#define STRIDE(field, ...)                                                                         \
    memcpy(field, ((int64_t[]){__VA_ARGS__}), sizeof((int64_t[]){__VA_ARGS__}))

#endif
