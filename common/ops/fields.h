/* Fields of a descriptor that embeds a rope_desc, checked as every operation checks them. */
#ifndef ROPEKIT_COMMON_FIELDS_H
#define ROPEKIT_COMMON_FIELDS_H

#include "common/names.h"

#include <ropekit/backend.h>

#include <stddef.h>

/* A field that must be 0 where nothing reads it: a number, or of another kind. */
typedef enum rope_field_kind { KIND_I32, KIND_I64, KIND_REAL, KIND_OTHER } rope_field_kind;
typedef struct rope_unread {
    const char *name;
    size_t offset, size;
    rope_field_kind kind;
    const char *names; /* of an enumeration, or NULL */
} rope_unread;

#define ROPE_UNREAD(type, field) ROPE_UNREAD_CHOICE(type, field, NULL)
#define ROPE_UNREAD_CHOICE(type, field, names)                                                     \
    {                                                                                              \
#field, offsetof(type, field), sizeof(((type *)0)->field),                                 \
            _Generic(((type *)0)->field, int32_t                                                   \
                     : KIND_I32, int64_t                                                           \
                     : KIND_I64, double                                                            \
                     : KIND_REAL, default                                                          \
                     : KIND_OTHER),                                                                \
            names                                                                                  \
    }

#define ROPE_COUNT(list) (sizeof(list) / sizeof((list)[0]))

/* Fields of a list are 0. Errors say prefix, name, value and `where`. */
rope_status rope_unread_check(const void *record, const rope_unread *list, size_t count,
                              const char *prefix, const char *where);

/* 0 unless it is read; then ROPE_I32, ROPE_I64 or 0, which becomes position_dtype. */
rope_status rope_index_dtype_check(const char *name, int32_t *dtype, int is_read, const char *where,
                                   int32_t position_dtype);

/* Of ROPE_CACHE_TABLE any number of tokens, of ROPE_CACHE_SEQUENCE those of a page. */
rope_status rope_ring_check(int64_t ring, int32_t cache, int64_t page_size);

/* A divisor of head_dim; 0 becomes head_dim. */
rope_status rope_dim_block_check(const char *name, int32_t *block, int32_t head_dim);

/* A type that a cache holds, where 0 becomes dtype, and its scale. */
rope_status rope_store_check(const char *part, const char *name, int32_t *store_dtype,
                             int32_t *scale, int32_t dtype);

/* The embedded rope_desc, not of ROPE_F64, of heads of `most` elements at most. Where nothing
 * rotates what only a rotation reads is 0, and rotary_dim becomes 0; `where` names what says so. */
rope_status rope_embedded_read(const rope_desc *given, int32_t most, int rotates, const char *where,
                               rope_desc *full);

/* A field of bounds by its name there. */
typedef struct rope_bound {
    const char *name;
    int64_t value;
} rope_bound;
rope_status rope_bounds_check(const rope_bound *bounds, size_t count);

#endif
