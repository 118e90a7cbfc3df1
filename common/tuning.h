/* Which of several kernels a call takes: the one that was fastest at the nearest of measured calls.
 */
#ifndef ROPEKIT_COMMON_TUNING_H
#define ROPEKIT_COMMON_TUNING_H

#include <ropekit/backend.h>

enum { ROPE_TUNED_KERNELS = 8, ROPE_LIKE_ZERO = -1, ROPE_EXACT_OR_LARGER = 2 };

/* A number by which calls of an operation differ, and its field in tables. */
typedef struct rope_shape_field {
    const char *name;
    const char *const *texts; /* of the values 1.., up to a NULL; NULL: tables have numbers */
    int32_t
        exact;    /* 1: a measured call of another value says nothing of this one;
                     ROPE_EXACT_OR_LARGER: where there is none of this value, the next larger counts */
    int32_t like; /* of points that leave this one out: 1 + an earlier field, whose value they have,
                     or ROPE_LIKE_ZERO; 0: none may */
    int32_t apart; /* 1: 0 or 1, and points of the other value count where there are none of this */
    int (*is_allowed)(int64_t number); /* in tables, of a field without texts; and in words */
    const char *allowed;
} rope_shape_field;

/* values: of earlier fields. */
static inline int64_t rope_shape_absent(const rope_shape_field *field, const int64_t *values) {
    return field->like > 0 ? values[field->like - 1] : 0;
}

typedef struct rope_shape {
    const rope_shape_field *fields;
    int32_t count;
    /* Values of all fields; without a call, of those that are exact, which a problem decides. */
    void (*fill)(const void *problem, const void *call, int64_t *values);
    /* Bytes that a kernel within bounds may need beside the first's, where they are more than the
     * first's; or NULL. */
    size_t (*more_bytes)(const void *problem, const void *bounds);
} rope_shape;

/* What a table says of a problem. All 0: nothing. */
typedef struct rope_tuning {
    char origin[320];                     /* where the table is from */
    char kernels[ROPE_TUNED_KERNELS][64]; /* "backend:kernel" */
    int32_t kernel_count, point_count;
    int32_t room;           /* points that a field has memory for */
    int16_t *places;        /* logarithms of a point's values: a row for each field that is not
                               exact; of no point: beyond all others */
    unsigned char *fastest; /* kernel of each point; of the same memory */
} rope_tuning;

/*
 * Reads the table of `file`, else of ROPE_TUNING, else the one known of the device or, where it has
 * none, of the one most like it. An empty file name and a ROPE_TUNING of none ask for no table.
 * `values` are the problem's; where it has no point, those count that have 0 in exact
 * fields of ROPE_LIKE_ZERO. Returns INVALID_VALUE where the table cannot be read or a point of
 * the operation is malformed, whatever problem it is of, or OUT_OF_MEMORY.
 */
rope_status rope_tuning_load(const char *file, const rope_device_info *device,
                             const char *operation, const rope_shape *shape, const int64_t *values,
                             rope_tuning *tuning);
void rope_tuning_release(rope_tuning *tuning);

/* Leaves out the points of a kernel, unless there are no others. */
void rope_tuning_leave_out(rope_tuning *tuning, int32_t kernel);

/* The kernel of a call's nearest point. */
int32_t rope_tuning_nearest(const rope_tuning *tuning, const rope_shape *shape,
                            const int64_t *values);

/* Whether ROPE_TUNING may have this value. */
int rope_tuning_is_valid(const char *value);

/* A table that the library has, as text; name NULL past the last. */
typedef struct rope_known_table {
    const char *name;
    const char *text;
    size_t length;
} rope_known_table;
extern const rope_known_table rope_known_tables[];

#endif
