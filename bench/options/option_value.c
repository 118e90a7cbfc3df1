#include "bench/options/option_value.h"

#include "bench/output/message.h"
#include "bench/support/dtype.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Longest list that a list option takes. */
#define LIST_MOST 65536

static bool refuse(const option_field *field, const char *value, const char *allowed) {
    message("--%s is \"%.60s\"; allowed is %s", field->name, value, allowed);
    return false;
}

static bool read_integer(const char *text, char **end, int64_t *value) {
    errno = 0;
    *value = strtoll(text, end, 10);
    return *end != text && errno == 0;
}

static bool store_integer(const option_field *field, const char *text, void *target) {
    char *end;
    int64_t value;
    if (!read_integer(text, &end, &value) || *end != '\0' || value < field->least ||
        value > field->most) {
        char allowed[80];
        snprintf(allowed, sizeof allowed, "an integer in %lld..%lld", (long long)field->least,
                 (long long)field->most);
        return refuse(field, text, allowed);
    }
    if (field->kind == OPTION_INT32)
        *(int32_t *)target = (int32_t)value;
    else
        *(int64_t *)target = value;
    return true;
}

static bool store_choice(const option_field *field, const char *text, int32_t *target) {
    const char *name = field->values;
    size_t length = strlen(text);
    for (int32_t number = 1;; number++) {
        size_t size = strcspn(name, "|");
        if (size == length && memcmp(name, text, size) == 0) {
            *target = number + (int32_t)field->least;
            return true;
        }
        if (name[size] == '\0')
            return refuse(field, text, field->values);
        name += size + 1;
    }
}

static bool store_dtype(const option_field *field, const char *text, int32_t *target) {
    int32_t choice;
    if (!store_choice(field, text, &choice))
        return false;
    for (*target = 1; strcmp(dtype_name(*target), text) != 0;)
        ++*target;
    return true;
}

/* 0 would mean "not given". */
static bool store_double(const option_field *field, const char *text, double *target) {
    char *end;
    *target = strtod(text, &end);
    return (end != text && *end == '\0' && *target != 0) ||
           refuse(field, text, "a number other than 0");
}

/* Entries of a comma list, at least 1. */
static int64_t list_count(const char *text) {
    int64_t count = 1;
    for (; *text; text++)
        count += *text == ',';
    return count;
}

static bool store_factors(options *o, const option_field *field, const char *text,
                          const double **target) {
    int64_t count = list_count(text);
    if (count > LIST_MOST)
        return refuse(field, text, "at most 65536 numbers");
    double *list = pool_alloc(o->pool, (size_t)count, sizeof *list);
    const char *entry = text;
    char *end = (char *)text;
    for (int64_t i = 0; list && i < count; i++, entry = end + 1) {
        list[i] = strtod(entry, &end);
        if (end == entry || (*end != ',' && *end != '\0'))
            return refuse(field, text, "numbers separated by commas");
    }
    *target = list;
    o->desc.factor_count = (int32_t)count;
    return list || refuse(field, text, "what fits memory");
}

/* Reads up to most integers; the number read, or -1 after a message. */
static int64_t read_list(const option_field *field, const char *text, int64_t *list, int64_t most) {
    int64_t count = list_count(text);
    const char *entry = text;
    char *end;
    for (int64_t i = 0; i < count && count <= most; i++, entry = end + 1)
        if (!read_integer(entry, &end, &list[i]) || (*end != ',' && *end != '\0'))
            count = most + 1;
    if (count <= most)
        return count;
    char allowed[64];
    snprintf(allowed, sizeof allowed, "at most %lld integers separated by commas", (long long)most);
    refuse(field, text, allowed);
    return -1;
}

static bool store_sections(const option_field *field, const char *text, int32_t *sections) {
    int64_t list[ROPE_MAX_AXES] = {0};
    if (read_list(field, text, list, ROPE_MAX_AXES) < 0)
        return false;
    for (int i = 0; i < ROPE_MAX_AXES; i++) {
        if (list[i] < 0 || list[i] > ROPE_MAX_ROTARY_DIM)
            return refuse(field, text, "entries in 0..4096");
        sections[i] = (int32_t)list[i];
    }
    return true;
}

static bool store_indices(options *o, const option_field *field, const char *text,
                          index_list *target) {
    int64_t *list = pool_alloc(o->pool, LIST_MOST, sizeof *list);
    if (!list)
        return refuse(field, text, "what fits memory");
    target->values = list;
    target->count = read_list(field, text, list, LIST_MOST);
    return target->count >= 0;
}

/* The library reads one entry for each pair, so the list has room for every pair. */
static bool store_bytes(options *o, const option_field *field, const char *text,
                        const uint8_t **target) {
    int64_t list[ROPE_MAX_ROTARY_DIM / 2];
    int64_t count = read_list(field, text, list, ROPE_MAX_ROTARY_DIM / 2);
    uint8_t *bytes = pool_alloc(o->pool, ROPE_MAX_ROTARY_DIM / 2, 1);
    for (int64_t i = 0; bytes && i < count; i++) {
        if (list[i] < 0 || list[i] >= ROPE_MAX_AXES)
            return refuse(field, text, "entries in 0..3");
        bytes[i] = (uint8_t)list[i];
    }
    *target = bytes;
    return bytes && count >= 0;
}

bool option_store(options *o, const option_field *field, const char *value) {
    void *target = (char *)o + field->offset;
    if (field->kind == OPTION_FLAG) {
        *(bool *)target = true;
        return !value || refuse(field, value, "no value");
    }
    if (!value)
        return refuse(field, "", "a value");
    switch (field->kind) {
    case OPTION_CHOICE:
        return store_choice(field, value, target);
    case OPTION_DTYPE:
        return store_dtype(field, value, target);
    case OPTION_INT32:
    case OPTION_INT64:
        return store_integer(field, value, target);
    case OPTION_DOUBLE:
        return store_double(field, value, target);
    case OPTION_SECTIONS:
        return store_sections(field, value, target);
    case OPTION_FACTORS:
        return store_factors(o, field, value, target);
    case OPTION_BYTES:
        return store_bytes(o, field, value, target);
    case OPTION_INDICES:
        return store_indices(o, field, value, target);
    default:
        *(const char **)target = value;
        return true;
    }
}
