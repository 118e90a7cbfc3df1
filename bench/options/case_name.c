#define _GNU_SOURCE
#include "bench/options/case_name.h"
#include "bench/support/dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *options_dtype(const options *o) {
    return o->dtype_is_assumed ? "bf16 (the config states no dtype)" : dtype_name(o->desc.dtype);
}

/* --- the value of a field --- */

static cJSON *integer(int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return cJSON_CreateRaw(text);
}

/* With as many digits as name no other number. */
static cJSON *number(double value) {
    char text[40];
    int digits = 5;
    if (fabs(value) < 1e15 && rint(value) == value)
        return integer((int64_t)value);
    do
        snprintf(text, sizeof text, "%.*g", ++digits, value);
    while (digits < 17 && strtod(text, NULL) != value);
    return cJSON_CreateRaw(text);
}

static cJSON *choice(const option_field *field, int32_t chosen) {
    char text[24];
    const char *at = field->values;
    chosen -= (int32_t)field->least;
    if (chosen <= 0)
        return NULL;
    while (--chosen)
        at += strcspn(at, "|") + 1;
    snprintf(text, sizeof text, "%.*s", (int)strcspn(at, "|"), at);
    return cJSON_CreateString(text);
}

static cJSON *list_entry(const option_field *field, const void *member, int64_t i) {
    switch (field->kind) {
    case OPTION_INDICES:
        return integer(((const index_list *)member)->values[i]);
    case OPTION_SECTIONS:
        return integer(((const int32_t *)member)[i]);
    case OPTION_FACTORS:
        return number((*(const double *const *)member)[i]);
    default:
        return integer((*(const uint8_t *const *)member)[i]);
    }
}

static cJSON *list(const options *o, const option_field *field, const void *member) {
    const int32_t rotary_dim = o->desc.rotary_dim ? o->desc.rotary_dim : o->desc.head_dim;
    const int64_t count = field->kind == OPTION_INDICES    ? ((const index_list *)member)->count
                          : field->kind == OPTION_SECTIONS ? o->desc.axes
                          : !*(const void *const *)member  ? 0
                          : field->kind == OPTION_FACTORS  ? o->desc.factor_count
                                                           : rotary_dim / 2;
    cJSON *array = count ? cJSON_CreateArray() : NULL;
    for (int64_t i = 0; i < count; i++)
        cJSON_AddItemToArray(array, list_entry(field, member, i));
    return array;
}

cJSON *options_value(const options *o, const option_field *field) {
    const void *member = (const char *)o + field->offset;
    switch (field->kind) {
    case OPTION_FLAG:
        return *(const bool *)member ? cJSON_CreateTrue() : NULL;
    case OPTION_CHOICE:
        return choice(field, *(const int32_t *)member);
    case OPTION_DTYPE:
        return *(const int32_t *)member ? cJSON_CreateString(dtype_name(*(const int32_t *)member))
                                        : NULL;
    case OPTION_INT32:
        return integer(*(const int32_t *)member);
    case OPTION_INT64:
        return integer(*(const int64_t *)member);
    case OPTION_DOUBLE:
        return number(*(const double *)member);
    case OPTION_TEXT:
        return *(const char *const *)member ? cJSON_CreateString(*(const char *const *)member)
                                            : NULL;
    default:
        return list(o, field, member);
    }
}

/* --- a case as options --- */

/* A word that a shell reads as this text. */
static void print_quoted(FILE *file, const char *text) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "_-+=./,:@%";
    if (*text && text[strspn(text, plain)] == '\0') {
        fputs(text, file);
        return;
    }
    fputc('\'', file);
    for (; *text; text++)
        fputs(*text == '\'' ? "'\\''" : (char[]){*text, '\0'}, file);
    fputc('\'', file);
}

static void print_field(FILE *file, const option_field *field, const cJSON *value) {
    fprintf(file, "%s--%s", ftell(file) > 0 ? " " : "", field->name);
    if (field->kind != OPTION_FLAG)
        fputc('=', file);
    if (cJSON_IsArray(value))
        for (const cJSON *entry = value->child; entry; entry = entry->next)
            fprintf(file, "%s%s", entry->valuestring, entry->next ? "," : "");
    else if (value->valuestring)
        print_quoted(file, value->valuestring);
}

/* Prints the fields that are not usual, of a case or of how it was run. */
static void print_fields(FILE *file, const options *o, bool of_case) {
    static const char run[] = " device threads seed ";
    const options usual = options_usual();
    for (int32_t i = 0; i < option_field_count; i++) {
        const option_field *field = &option_fields[i];
        char word[64];
        snprintf(word, sizeof word, " %s ", field->name);
        if (of_case ? field->group < OPTION_CASE : !strstr(run, word))
            continue;
        cJSON *value = options_value(o, field), *other = options_value(&usual, field);
        if (value && !cJSON_Compare(value, other, true))
            print_field(file, field, value);
        cJSON_Delete(value);
        cJSON_Delete(other);
    }
}

static const char *print(const options *o, const char *command) {
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (file && command) {
        fprintf(file, "ropekit %s --backend=%s", command, o->desc.backend);
        print_fields(file, o, false);
    }
    if (file)
        print_fields(file, o, true);
    if (!file || fclose(file) != 0) {
        free(text);
        text = NULL;
    }
    return pool_keep(o->pool, text, free);
}

const char *case_name(const options *o) {
    return print(o, NULL);
}

const char *case_command(const options *o, const char *command) {
    return print(o, command);
}
