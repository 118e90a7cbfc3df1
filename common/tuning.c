#define _GNU_SOURCE
#include "common/tuning.h"

#include "common/json.h"
#include "common/log.h"
#include "common/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_BYTES = 1 << 24 };
/* Distances are summed side by side; a first place beyond every other is of no point. */
enum {
    POINTS_AT_ONCE = 32,
    PLACES = 8 * 64,
    APART = 8 * PLACES, /* of eight fields, one of them apart: more than the others together */
    NO_PLACE = INT16_MAX / 2
};
_Static_assert(2 * (int)APART < (int)NO_PLACE && 2 * (int)APART < INT16_MAX - (int)NO_PLACE,
               "farther than places lie apart, and their sum is one");
_Static_assert(ROPE_TUNED_KERNELS == 8, "read_kernel says so");

/* --- distance --- */

/* The logarithm of a value in eighths of an octave. */
static int16_t place_of(int64_t value) {
    if (value < 1)
        return 0;
    const int octave = 63 - __builtin_clzll((unsigned long long)value);
    return (int16_t)(8 * (octave + 1) +
                     (int)(octave >= 3 ? value >> (octave - 3) & 7 : value << (3 - octave) & 7));
}

static int16_t place_in(const rope_shape_field *field, int64_t value) {
    return field->apart ? (int16_t)(value ? APART : 0) : place_of(value);
}

static int16_t apart(int16_t a, int16_t b) {
    return (int16_t)(a > b ? a - b : b - a);
}

void rope_tuning_leave_out(rope_tuning *tuning, int32_t kernel) {
    for (int32_t i = 0; i < tuning->point_count; i++)
        if (tuning->fastest[i] == kernel)
            tuning->places[i] = NO_PLACE;
}

/* Of exact fields all points have the call's values. */
int32_t rope_tuning_nearest(const rope_tuning *tuning, const rope_shape *shape,
                            const int64_t *values) {
    int16_t own[ROPE_SHAPE_MOST], least = INT16_MAX;
    int32_t fields = 0, nearest = 0;
    for (int32_t f = 0; f < shape->count; f++)
        if (!shape->fields[f].exact)
            own[fields++] = place_in(&shape->fields[f], values[f]);
    for (int32_t first = 0; first < tuning->point_count; first += POINTS_AT_ONCE) {
        int16_t distance[POINTS_AT_ONCE] = {0}, smallest = INT16_MAX;
        for (int32_t f = 0; f < fields; f++) {
            const int16_t *places = tuning->places + f * tuning->room + first, place = own[f];
            for (int32_t i = 0; i < POINTS_AT_ONCE; i++)
                distance[i] = (int16_t)(distance[i] + apart(places[i], place));
        }
        for (int32_t i = 0; i < POINTS_AT_ONCE; i++)
            smallest = distance[i] < smallest ? distance[i] : smallest;
        for (int32_t i = 0; smallest < least; i++)
            if (distance[i] == smallest) {
                least = smallest;
                nearest = tuning->fastest[first + i];
            }
    }
    return nearest;
}

/* --- a table --- */

/* The least problem that is a problem's but for values that may be larger. */
typedef struct larger {
    int found;
    int64_t values[ROPE_SHAPE_MOST];
} larger;

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

/* A string that has room; empty where there is none. Quotes are no part of it. */
static const char *copy_text(const char *value, char *room, size_t size) {
    room[0] = 0;
    if (value && rope_json_type(value) == JSON_STRING && rope_json_length(value) - 2 < size)
        rope_json_string(value, room);
    return room;
}

static const char *text_of(const char *object, const char *name, char *room, size_t size) {
    return copy_text(member(object, name), room, size);
}

/* A value as it stands there, a long one cut; NULL is absent. */
static void describe(const char *value, char text[112]) {
    const json_type type = value ? rope_json_type(value) : JSON_NULL;
    const size_t length = value ? rope_json_length(value) : 0;
    if (!value)
        snprintf(text, 112, "absent");
    else if (type == JSON_OBJECT || type == JSON_LIST)
        snprintf(text, 112, type == JSON_OBJECT ? "an object" : "a list");
    else if (type == JSON_STRING && length > 72)
        snprintf(text, 112, "%.41s...\" of %zu bytes", value, length - 2);
    else if (type == JSON_NUMBER)
        snprintf(text, 112, "%.17g", rope_json_number(value));
    else
        snprintf(text, 112, "%.*s", (int)length, value);
}

/* value: of the field, or NULL where the point has none. */
static rope_status wrong(const table *t, int32_t point, const char *field, const char *value,
                         const char *allowed) {
    char text[112];
    describe(value, text);
    return rope_fail(ROPE_ERROR_INVALID_VALUE, "%.200s: %s of point %d is %s; allowed is %s",
                     t->origin, field, point, text, allowed);
}

/* Names of fields or of values, with commas between them. */
static const char *add_name(char *list, size_t size, const char *name) {
    const size_t used = strlen(list);
    snprintf(list + used, size - used, "%s%s", used ? ", " : "", name);
    return list;
}

static rope_status wrong_name(const table *t, int32_t point, const char *name,
                              const rope_shape *shape) {
    char names[256] = "operation, kernel";
    for (int32_t f = 0; f < shape->count; f++)
        add_name(names, sizeof names, shape->fields[f].name);
    return rope_fail(ROPE_ERROR_INVALID_VALUE,
                     "%.200s: point %d has a field \"%s\"; allowed is any of %s", t->origin, point,
                     name, names);
}

/* The number of a field by its name; -1 where there is none. */
static int32_t field_of(const rope_shape *shape, const char *name) {
    int32_t f = shape->count - 1;
    while (f >= 0 && strcmp(shape->fields[f].name, name) != 0)
        f--;
    return f;
}

/* Values of a shape's fields in a point; found: all NULL, and so where it has none. */
static rope_status find_fields(const table *t, int32_t index, const char *point,
                               const rope_shape *shape, const char **found) {
    const char *operation = NULL, *kernel = NULL;
    char name[64];
    for (json_entry e = rope_json_first(point); e.value; e = rope_json_next(e)) {
        snprintf(name, sizeof name, "of more than 63 bytes");
        if (rope_json_length(e.name) - 2 < sizeof name)
            rope_json_string(e.name, name);
        const int32_t f = field_of(shape, name);
        const char **value = f >= 0                           ? &found[f]
                             : strcmp(name, "operation") == 0 ? &operation
                             : strcmp(name, "kernel") == 0    ? &kernel
                                                              : NULL;
        if (!value)
            return wrong_name(t, index, name, shape);
        if (*value)
            return rope_fail(ROPE_ERROR_INVALID_VALUE,
                             "%.200s: %s of point %d is given twice; allowed is once", t->origin,
                             name, index);
        *value = e.value;
    }
    return ROPE_OK;
}

/* found: as find_fields gives it; values: of earlier fields. */
static rope_status read_value(const table *t, int32_t index, const char *found,
                              const rope_shape_field *field, const int64_t *values,
                              int64_t *value) {
    if (!found && field->like) {
        *value = rope_shape_absent(field, values);
        return ROPE_OK;
    }
    if (!field->texts) {
        const double number =
            found && rope_json_type(found) == JSON_NUMBER ? rope_json_number(found) : -1;
        if (!(number >= 0 && number < 0x1p62) || number != (double)(int64_t)number ||
            !field->is_allowed((int64_t)number))
            return wrong(t, index, field->name, found, field->allowed);
        *value = (int64_t)number;
        return ROPE_OK;
    }
    char text[32], names[128] = "";
    copy_text(found, text, sizeof text);
    for (*value = 1; field->texts[*value - 1]; ++*value)
        if (strcmp(field->texts[*value - 1], text) == 0)
            return ROPE_OK;
        else
            add_name(names, sizeof names, field->texts[*value - 1]);
    return wrong(t, index, field->name, found, names);
}

/* The number of a kernel's name, which a tuning has from now on; -1 where it has no more room. */
static int32_t number_of(rope_tuning *tuning, const char name[64]) {
    int32_t kernel = 0;
    while (kernel < tuning->kernel_count && strcmp(tuning->kernels[kernel], name) != 0)
        kernel++;
    if (kernel == ROPE_TUNED_KERNELS)
        return -1;
    if (kernel == tuning->kernel_count)
        memcpy(tuning->kernels[tuning->kernel_count++], name, 64);
    return kernel;
}

static void keep_point(rope_tuning *tuning, const rope_shape *shape, const int64_t *values,
                       int32_t kernel) {
    int16_t *place = tuning->places + tuning->point_count;
    for (int32_t f = 0; f < shape->count; f++)
        if (!shape->fields[f].exact) {
            *place = place_in(&shape->fields[f], values[f]);
            place += tuning->room;
        }
    tuning->fastest[tuning->point_count++] = (unsigned char)kernel;
}

/* Whether a point is of a problem: 1; 0; -1: of one that differs in larger values alone. */
static int compare(const rope_shape *shape, const int64_t *own, const int64_t *values) {
    int is_larger = 0;
    for (int32_t f = 0; f < shape->count; f++) {
        if (!shape->fields[f].exact || own[f] == values[f])
            continue;
        if (shape->fields[f].exact != ROPE_EXACT_OR_LARGER || own[f] < values[f])
            return 0;
        is_larger = 1;
    }
    return is_larger ? -1 : 1;
}

/* Keeps the values of a problem in `least`, unless it has smaller ones. */
static void note_larger(const rope_shape *shape, const int64_t *own, larger *least) {
    int32_t f = 0;
    while (f < shape->count && (!shape->fields[f].exact || own[f] == least->values[f]))
        f++;
    if (least->found && (f == shape->count || own[f] > least->values[f]))
        return;
    least->found = 1;
    memcpy(least->values, own, sizeof least->values);
}

/* Checks a point, and keeps one of the problem. */
static rope_status read_point(const table *t, int32_t index, const char *point,
                              const rope_shape *shape, const int64_t *values, rope_tuning *tuning,
                              larger *least) {
    const char *found[ROPE_SHAPE_MOST] = {NULL};
    int64_t own[ROPE_SHAPE_MOST] = {0};
    char name[64];
    rope_status status = find_fields(t, index, point, shape, found);
    for (int32_t f = 0; f < shape->count && status == ROPE_OK; f++)
        status = read_value(t, index, found[f], &shape->fields[f], own, &own[f]);
    if (status != ROPE_OK)
        return status;
    if (!strchr(text_of(point, "kernel", name, sizeof name), ':'))
        return wrong(t, index, "kernel", member(point, "kernel"),
                     "a name as in \"cpu:avx512\", of up to 63 bytes");
    const int is_same = compare(shape, own, values);
    if (is_same < 0)
        note_larger(shape, own, least);
    if (is_same != 1)
        return ROPE_OK;
    const int32_t kernel = number_of(tuning, name);
    if (kernel < 0)
        return wrong(t, index, "kernel", member(point, "kernel"),
                     "one of at most 8 names of this problem");
    keep_point(tuning, shape, own, kernel);
    return ROPE_OK;
}

static rope_status make_room(const table *t, const rope_shape *shape, int32_t points,
                             rope_tuning *tuning) {
    size_t fields = 0;
    for (int32_t f = 0; f < shape->count; f++)
        fields += !shape->fields[f].exact;
    const size_t room = ((size_t)points / POINTS_AT_ONCE + 1) * POINTS_AT_ONCE;
    tuning->places = calloc(room, fields * sizeof *tuning->places + 1);
    if (!tuning->places)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for %d points of %.200s", points,
                         t->origin);
    for (size_t i = 0; fields && i < room; i++)
        tuning->places[i] = NO_PLACE;
    tuning->fastest = (unsigned char *)(tuning->places + fields * room);
    tuning->room = (int32_t)room;
    return ROPE_OK;
}

static rope_status read_points(const table *t, const char *operation, const rope_shape *shape,
                               const int64_t *values, rope_tuning *tuning, larger *least) {
    const char *points = member(t->text, "points");
    int32_t count = 0, index = 0;
    for (json_entry e = rope_json_first(points); e.value; e = rope_json_next(e))
        count++;
    rope_status status = make_room(t, shape, count, tuning);
    for (json_entry e = rope_json_first(points); e.value && status == ROPE_OK;
         e = rope_json_next(e), index++) {
        char name[64];
        if (rope_json_type(e.value) != JSON_OBJECT)
            status = wrong(t, index, "what is there instead", e.value, "an object");
        else if (!*text_of(e.value, "operation", name, sizeof name))
            status = wrong(t, index, "operation", member(e.value, "operation"), "a name");
        else if (strcmp(name, operation) == 0)
            status = read_point(t, index, e.value, shape, values, tuning, least);
    }
    return status;
}

/* What a table says of its device, and its points, each once. */
static rope_status check_names(const table *t) {
    static const struct {
        const char *name;
        json_type type;
    } members[] = {{"backend", JSON_STRING},
                   {"device", JSON_STRING},
                   {"features", JSON_STRING},
                   {"points", JSON_LIST}};
    int seen[4] = {0};
    char name[64], text[112];
    for (json_entry e = rope_json_first(t->text); e.value; e = rope_json_next(e))
        for (int i = 0; i < 4; i++) {
            if (strcmp(copy_text(e.name, name, sizeof name), members[i].name) != 0)
                continue;
            describe(e.value, text);
            if (rope_json_type(e.value) != members[i].type)
                return rope_fail(ROPE_ERROR_INVALID_VALUE, "%.200s: %s is %s; allowed is %s",
                                 t->origin, name, text,
                                 members[i].type == JSON_LIST ? "a list" : "a string");
            if (seen[i]++)
                return rope_fail(ROPE_ERROR_INVALID_VALUE,
                                 "%.200s: %s is given twice; allowed is once", t->origin, name);
        }
    return seen[3] ? ROPE_OK
                   : rope_fail(ROPE_ERROR_INVALID_VALUE,
                               "%.200s: points is absent; allowed is a list", t->origin);
}

static rope_status check_table(const char *origin, const char *text, size_t length, table *t) {
    *t = (table){.origin = origin};
    rope_status status = rope_json_check(text, length, &t->text);
    if (status != ROPE_OK) {
        char reason[256];
        snprintf(reason, sizeof reason, "%s", rope_last_error());
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%.200s: %s", origin, reason);
    }
    if (rope_json_type(t->text) != JSON_OBJECT)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%.200s is not an object", origin);
    return check_names(t);
}

/* --- which table --- */

/* A file's bytes, as many as fit. */
static size_t read_bytes(int file, char *text, size_t size) {
    size_t length = 0;
    ssize_t more = 1;
    while (more > 0 && length < size) {
        more = read(file, text + length, size - length);
        length += more > 0 ? (size_t)more : 0;
    }
    return length;
}

/* field: what names the file. */
static rope_status read_file(const char *field, const char *path, char **text, size_t *length) {
    struct stat found;
    *text = NULL;
    *length = 0;
    const int is_missing = stat(path, &found) != 0,
              is_regular = !is_missing && S_ISREG(found.st_mode);
    const int file = is_regular ? open(path, O_RDONLY | O_CLOEXEC) : -1; /* a FIFO would block */
    if (file < 0)
        return rope_fail(
            ROPE_ERROR_INVALID_VALUE,
            "%s is \"%.200s\": %s; allowed is a file of 1 to %d bytes that can be read", field,
            path, is_missing || is_regular ? strerror(errno) : "no regular file", MOST_BYTES);
    const int fits = found.st_size > 0 && found.st_size <= MOST_BYTES;
    *text = fits ? malloc((size_t)found.st_size + 1) : NULL;
    *length = *text ? read_bytes(file, *text, (size_t)found.st_size) : 0;
    if (*text)
        (*text)[*length] = 0;
    close(file);
    if (fits && !*text)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for %lld bytes of %.200s",
                         (long long)found.st_size, path);
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

/* As read_points, where there are no points yet. */
static rope_status read_else(const table *t, const char *operation, const rope_shape *shape,
                             const int64_t *values, rope_tuning *tuning, larger *least) {
    if (tuning->point_count)
        return ROPE_OK;
    free(tuning->places);
    tuning->places = NULL;
    return read_points(t, operation, shape, values, tuning, least);
}

/* The points of a problem; where there are none, of one whose points leave out what they may; then
 * of those with the next larger values. */
static rope_status read_nearest(const table *t, const char *operation, const rope_shape *shape,
                                const int64_t *values, rope_tuning *tuning) {
    int64_t problems[2][ROPE_SHAPE_MOST] = {{0}};
    larger least[2] = {{0}}, none = {0};
    rope_status status = ROPE_OK;
    for (int32_t f = 0; f < shape->count; f++) {
        const rope_shape_field *field = &shape->fields[f];
        problems[0][f] = values[f];
        problems[1][f] = field->exact && field->like == ROPE_LIKE_ZERO ? 0 : values[f];
    }
    for (int i = 0; i < 2 && status == ROPE_OK; i++)
        status = read_else(t, operation, shape, problems[i], tuning, &least[i]);
    for (int i = 0; i < 2 && status == ROPE_OK; i++)
        if (least[i].found)
            status = read_else(t, operation, shape, least[i].values, tuning, &none);
    return status;
}

static rope_status take(const table *t, const char *operation, const rope_shape *shape,
                        const int64_t *values, rope_tuning *tuning) {
    char device[100];
    text_of(t->text, "device", device, sizeof device);
    snprintf(tuning->origin, sizeof tuning->origin, "%.200s%s%s", t->origin, *device ? " of " : "",
             device);
    const rope_status status = read_nearest(t, operation, shape, values, tuning);
    if (status != ROPE_OK)
        rope_tuning_release(tuning);
    return status;
}

static int is_none(const char *variable) {
    return strcmp(variable, "none") == 0;
}

rope_status rope_tuning_load(const char *file, const rope_device_info *device,
                             const char *operation, const rope_shape *shape, const int64_t *values,
                             rope_tuning *tuning) {
    table t = {NULL, NULL};
    const char *field = "tuning", *named = getenv("ROPE_TUNING");
    char *text = NULL;
    size_t length = 0;
    memset(tuning, 0, sizeof *tuning);
    if (!file && named && *named) {
        field = "ROPE_TUNING";
        file = is_none(named) ? "" : named;
    }
    if (file && !*file)
        return ROPE_OK;
    rope_status status = file ? read_file(field, file, &text, &length) : load_known(device, &t);
    if (status == ROPE_OK && file)
        status = check_table(file, text, length, &t);
    if (status == ROPE_OK && t.text)
        status = take(&t, operation, shape, values, tuning);
    free(text);
    return status;
}

void rope_tuning_release(rope_tuning *tuning) {
    free(tuning->places);
    memset(tuning, 0, sizeof *tuning);
}

int rope_tuning_is_valid(const char *value) {
    char *text;
    size_t length;
    table t;
    if (is_none(value))
        return 1;
    const int is_valid = read_file("ROPE_TUNING", value, &text, &length) == ROPE_OK &&
                         check_table(value, text, length, &t) == ROPE_OK;
    free(text);
    return is_valid;
}
