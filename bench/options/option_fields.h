/* The table of options. */
#ifndef ROPEKIT_BENCH_OPTION_FIELDS_H
#define ROPEKIT_BENCH_OPTION_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How a value is read and where it goes. */
typedef enum option_kind {
    OPTION_FLAG,     /* bool */
    OPTION_CHOICE,   /* int32_t, least + 1 + index in values */
    OPTION_DTYPE,    /* int32_t, one of the names in values */
    OPTION_INT32,    /* int32_t within least..most */
    OPTION_INT64,    /* int64_t within least..most */
    OPTION_DOUBLE,   /* double */
    OPTION_TEXT,     /* const char * */
    OPTION_SECTIONS, /* int32_t[ROPE_MAX_AXES] */
    OPTION_FACTORS,  /* const double *, also sets desc.factor_count */
    OPTION_BYTES,    /* const uint8_t *, one for each pair */
    OPTION_INDICES,  /* index_list */
} option_kind;

/* Groups of --help. What is in none of the first two makes a case. */
typedef enum option_group {
    OPTION_RUN,
    OPTION_MODEL,
    OPTION_CASE,
    OPTION_TENSORS,
    OPTION_FREQUENCIES,
    OPTION_POSITIONS,
    OPTION_ANGLES,
    OPTION_CACHE,     /* read by append and attention alone */
    OPTION_APPEND,    /* by append alone */
    OPTION_ATTENTION, /* by attention alone */
    OPTION_GROUPS
} option_group;
extern const char *const option_group_names[OPTION_GROUPS];

typedef struct option_field {
    const char *name;
    option_kind kind;
    option_group group;
    int32_t commands;   /* COMMAND_ bits */
    size_t offset;      /* in options */
    const char *values; /* choices "a|b|c", else the word for the value in --help */
    int64_t least, most;
    const char *help;
} option_field;

extern const option_field option_fields[];
extern const int32_t option_field_count;

/* Whether it says how k or v is stored, which decode reads too. */
bool option_is_store(const option_field *field);

#endif
