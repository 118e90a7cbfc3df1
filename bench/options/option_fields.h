/* The table of options. */
#ifndef ROPEKIT_BENCH_OPTION_FIELDS_H
#define ROPEKIT_BENCH_OPTION_FIELDS_H

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

typedef struct option_field {
    const char *name;
    option_kind kind;
    int32_t commands;   /* COMMAND_ bits */
    size_t offset;      /* in options */
    const char *values; /* choices "a|b|c", else the word for the value in --help */
    int64_t least, most;
    const char *help, *group;
} option_field;

/* The group of what the frequency rule reads. */
#define OPTION_FREQUENCIES "Frequencies"
/* The groups of what one operation alone reads, and of what both that cache read. */
#define OPTION_APPEND "Append"
#define OPTION_ATTENTION "Attention"
#define OPTION_CACHE "Cache, for append and attention"

extern const option_field option_fields[];
extern const int32_t option_field_count;

#endif
