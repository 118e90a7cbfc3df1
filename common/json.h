/* JSON as RFC 8259 has it, checked once and then read where its text lies. */
#ifndef ROPEKIT_COMMON_JSON_H
#define ROPEKIT_COMMON_JSON_H

#include <ropekit/rope.h>

enum { JSON_MAX_DEPTH = 100 };

typedef enum json_type {
    JSON_OBJECT,
    JSON_LIST,
    JSON_STRING,
    JSON_NUMBER,
    JSON_TRUE,
    JSON_FALSE,
    JSON_NULL
} json_type;

/* An entry of an object or, without a name, of a list. Both are addresses of a first byte. */
typedef struct json_entry {
    const char *name, *value;
} json_entry;

/*
 * The value that a text holds: one in UTF-8, with no more than JSON_MAX_DEPTH objects and lists in
 * each other and without the character U+0000. On an error, whose text names the byte, *value is
 * untouched. The functions below take addresses in a text that passed.
 */
rope_status rope_json_check(const char *text, size_t length, const char **value);

json_type rope_json_type(const char *value);
/* Bytes of a value. */
size_t rope_json_length(const char *value);

/* The first entry of an object or a list, and the next one; value is NULL past the last. */
json_entry rope_json_first(const char *container);
json_entry rope_json_next(json_entry entry);

/* A number in a container; infinite where it is too large. Reads the locale's decimal point. */
double rope_json_number(const char *value);
/* Writes a string's characters and a 0, at most as many bytes as the value has. Returns its length
 * without the 0. */
size_t rope_json_string(const char *value, char *text);

#endif
