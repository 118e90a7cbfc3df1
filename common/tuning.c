#include "common/tuning.h"

#include "common/json.h"
#include "common/log.h"
#include "common/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_BYTES = 1 << 24 };
_Static_assert(ROPE_TUNED_KERNELS == 8, "read_kernel says so");

/* --- distance --- */

/* The logarithm of a value in eighths of an octave. */
static int32_t place_of(int64_t value) {
    if (value < 1)
        return 0;
    const int octave = 63 - __builtin_clzll((unsigned long long)value);
    return 8 * (octave + 1) +
           (int32_t)(octave >= 3 ? value >> (octave - 3) & 7 : value << (3 - octave) & 7);
}

int32_t rope_tuning_nearest(const rope_tuning *tuning, const rope_shape *shape,
                            const int64_t *values) {
    int32_t place[ROPE_SHAPE_MOST], nearest = 0, least = INT32_MAX;
    for (int32_t f = 0; f < shape->count; f++)
        place[f] = place_of(values[f]);
    for (int32_t i = 0; i < tuning->point_count; i++) {
        const rope_tuning_point *point = &tuning->points[i];
        int32_t distance = 0;
        for (int32_t f = 0; f < shape->count; f++)
            distance += abs(place[f] - point->place[f]);
        if (distance < least) {
            least = distance;
            nearest = point->kernel;
        }
    }
    return nearest;
}

/* --- a table --- */

typedef struct table {
    const char *origin, *text; /* of where, and what it holds, checked */
} table;

static const char *member(const char *object, const char *name) {
    char found[64];
    for (json_entry e = rope_json_first(object); e.value; e = rope_json_next(e))
        if (rope_json_length(e.name) < sizeof found) {
            rope_json_string(e.name, found);
            if (strcmp(found, name) == 0)
                return e.value;
        }
    return NULL;
}

/* A string of an object that has room; empty where there is none. */
static const char *text_of(const char *object, const char *name, char *room, size_t size) {
    const char *value = member(object, name);
    room[0] = 0;
    if (value && rope_json_type(value) == JSON_STRING && rope_json_length(value) < size)
        rope_json_string(value, room);
    return room;
}

static rope_status wrong(const table *t, int32_t point, const char *field, const char *allowed) {
    return rope_fail(ROPE_ERROR_INVALID_VALUE, "%.200s: %s of point %d is not %s", t->origin, field,
                     point, allowed);
}

static rope_status read_value(const table *t, int32_t index, const char *point,
                              const rope_shape_field *field, int64_t *value) {
    const char *found = member(point, field->name);
    if (!field->texts) {
        const double number =
            found && rope_json_type(found) == JSON_NUMBER ? rope_json_number(found) : -1;
        if (!(number >= 0 && number < 0x1p62))
            return wrong(t, index, field->name, "a number >= 0");
        *value = (int64_t)number;
        return ROPE_OK;
    }
    char text[32];
    text_of(point, field->name, text, sizeof text);
    for (*value = 1; field->texts[*value - 1]; ++*value)
        if (strcmp(field->texts[*value - 1], text) == 0)
            return ROPE_OK;
    return wrong(t, index, field->name, "one of its names");
}

/* The number of a kernel's name, which a tuning has from now on. */
static rope_status read_kernel(const table *t, int32_t index, const char *point,
                               rope_tuning *tuning, int32_t *kernel) {
    char name[64];
    if (!strchr(text_of(point, "kernel", name, sizeof name), ':'))
        return wrong(t, index, "kernel", "a name as in \"cpu:avx512\"");
    for (*kernel = 0; *kernel < tuning->kernel_count; ++*kernel)
        if (strcmp(tuning->kernels[*kernel], name) == 0)
            return ROPE_OK;
    if (tuning->kernel_count == ROPE_TUNED_KERNELS)
        return wrong(t, index, "kernel", "one of at most 8 names of this problem");
    memcpy(tuning->kernels[tuning->kernel_count++], name, sizeof name);
    return ROPE_OK;
}

/* Keeps a point of the problem. */
static rope_status read_point(const table *t, int32_t index, const char *point,
                              const rope_shape *shape, const int64_t *values, rope_tuning *tuning) {
    rope_tuning_point *kept = &tuning->points[tuning->point_count];
    int is_same = 1;
    for (int32_t f = 0; f < shape->count; f++) {
        int64_t value = 0;
        const rope_status status = read_value(t, index, point, &shape->fields[f], &value);
        if (status != ROPE_OK)
            return status;
        is_same &= !shape->fields[f].exact || value == values[f];
        kept->place[f] = place_of(value);
    }
    const rope_status status =
        is_same ? read_kernel(t, index, point, tuning, &kept->kernel) : ROPE_OK;
    tuning->point_count += status == ROPE_OK && is_same;
    return status;
}

static rope_status read_points(const table *t, const char *operation, const rope_shape *shape,
                               const int64_t *values, rope_tuning *tuning) {
    const char *points = member(t->text, "points");
    int32_t count = 0, index = 0;
    if (!points || rope_json_type(points) != JSON_LIST)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%.200s: points is not a list", t->origin);
    for (json_entry e = rope_json_first(points); e.value; e = rope_json_next(e))
        count++;
    tuning->points = calloc((size_t)count + 1, sizeof *tuning->points);
    if (!tuning->points)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for %d points of %.200s", count,
                         t->origin);
    for (json_entry e = rope_json_first(points); e.value; e = rope_json_next(e), index++) {
        char name[64];
        if (rope_json_type(e.value) != JSON_OBJECT)
            return wrong(t, index, "what is there instead", "an object");
        if (strcmp(text_of(e.value, "operation", name, sizeof name), operation) != 0)
            continue;
        const rope_status status = read_point(t, index, e.value, shape, values, tuning);
        if (status != ROPE_OK)
            return status;
    }
    return ROPE_OK;
}

static rope_status check_table(const char *origin, const char *text, size_t length, table *t) {
    *t = (table){.origin = origin};
    rope_status status = rope_json_check(text, length, &t->text);
    if (status != ROPE_OK) {
        char reason[256];
        snprintf(reason, sizeof reason, "%s", rope_last_error());
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%.200s: %s", origin, reason);
    }
    return rope_json_type(t->text) == JSON_OBJECT
               ? ROPE_OK
               : rope_fail(ROPE_ERROR_INVALID_VALUE, "%.200s is not an object", origin);
}

/* --- which table --- */

/* field: what names the file. */
static rope_status read_file(const char *field, const char *path, char **text, size_t *length) {
    FILE *file = fopen(path, "rb");
    *text = NULL;
    if (!file)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s is \"%.200s\": %s", field, path,
                         strerror(errno));
    const long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : 0;
    const int fits = size > 0 && size <= MOST_BYTES;
    rewind(file);
    *text = fits ? malloc((size_t)size + 1) : NULL;
    *length = *text ? fread(*text, 1, (size_t)size, file) : 0;
    if (*text)
        (*text)[*length] = 0;
    fclose(file);
    if (fits && !*text)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for %ld bytes of %.200s", size, path);
    return *length > 0 ? ROPE_OK
                       : rope_fail(ROPE_ERROR_INVALID_VALUE,
                                   "%s is \"%.200s\"; allowed is a file of 1 to %d bytes that "
                                   "can be read",
                                   field, path, MOST_BYTES);
}

/* How unlike a device is to that of a table; INT32_MAX: not to be compared. */
static int32_t difference(const table *t, const rope_device_info *device) {
    char backend[32], name[128], features[128];
    int version, other;
    text_of(t->text, "backend", backend, sizeof backend);
    text_of(t->text, "device", name, sizeof name);
    text_of(t->text, "features", features, sizeof features);
    if (strcmp(backend, device->backend) != 0)
        return INT32_MAX;
    if (strcmp(name, device->name) == 0)
        return 0;
    const size_t word = strcspn(features, " ");
    if (word > 0 && word == strcspn(device->features, " ") &&
        strncmp(features, device->features, word) == 0)
        return 1;
    if (sscanf(features, "sm_%d", &version) == 1 && sscanf(device->features, "sm_%d", &other) == 1)
        return 2 + abs(version - other);
    return INT32_MAX;
}

static rope_status load_known(const rope_device_info *device, table *found) {
    int32_t least = INT32_MAX;
    for (const rope_known_table *known = rope_known_tables; known->name; known++) {
        table t;
        const rope_status status = check_table(known->name, known->text, known->length, &t);
        if (status != ROPE_OK)
            return status;
        const int32_t unlike = difference(&t, device);
        if (unlike < least) {
            least = unlike;
            *found = t;
        }
    }
    return ROPE_OK;
}

static rope_status take(const table *t, const char *operation, const rope_shape *shape,
                        const int64_t *values, rope_tuning *tuning) {
    snprintf(tuning->origin, sizeof tuning->origin, "%s", t->origin);
    const rope_status status = read_points(t, operation, shape, values, tuning);
    if (status != ROPE_OK)
        rope_tuning_release(tuning);
    return status;
}

rope_status rope_tuning_load(const char *file, const rope_device_info *device,
                             const char *operation, const rope_shape *shape, const int64_t *values,
                             rope_tuning *tuning) {
    table t = {NULL, NULL};
    const char *field = "tuning", *named = getenv("ROPE_TUNING");
    char *text = NULL;
    size_t length = 0;
    memset(tuning, 0, sizeof *tuning);
    if (file && !*file)
        return ROPE_OK;
    if (!file && named && *named) {
        field = "ROPE_TUNING";
        file = named;
    }
    rope_status status = file ? read_file(field, file, &text, &length) : load_known(device, &t);
    if (status == ROPE_OK && file)
        status = check_table(file, text, length, &t);
    if (status == ROPE_OK && t.text)
        status = take(&t, operation, shape, values, tuning);
    free(text);
    return status;
}

void rope_tuning_release(rope_tuning *tuning) {
    free(tuning->points);
    memset(tuning, 0, sizeof *tuning);
}

int rope_tuning_is_valid(const char *value) {
    FILE *file = fopen(value, "rb");
    if (file)
        fclose(file);
    return file != NULL;
}
