#include "common/json.h"

#include "common/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the check ---- */

typedef struct reader {
    const char *text;
    size_t at, length;
    const char *allowed; /* where the byte at `at` is not */
} reader;

static int refuse(reader *r, const char *allowed) {
    r->allowed = allowed;
    return 0;
}

static int is_space(char byte) {
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

static int is_digit(char byte) {
    return byte >= '0' && byte <= '9';
}

static int take(reader *r, char byte) {
    const int found = r->at < r->length && r->text[r->at] == byte;
    r->at += (size_t)found;
    return found;
}

static void pass_space(reader *r) {
    while (r->at < r->length && is_space(r->text[r->at]))
        r->at++;
}

static int pass_digits(reader *r) {
    const size_t start = r->at;
    while (r->at < r->length && is_digit(r->text[r->at]))
        r->at++;
    return r->at > start || refuse(r, "a digit");
}

static int pass_number(reader *r) {
    (void)take(r, '-');
    if (!take(r, '0') && !pass_digits(r))
        return 0;
    if (take(r, '.') && !pass_digits(r))
        return 0;
    if (!take(r, 'e') && !take(r, 'E'))
        return 1;
    (void)(take(r, '+') || take(r, '-'));
    return pass_digits(r);
}

static int pass_word(reader *r, const char *word) {
    const size_t length = strlen(word);
    if (r->length - r->at < length || memcmp(r->text + r->at, word, length) != 0)
        return refuse(r, "a JSON value");
    r->at += length;
    return 1;
}

/* Bytes of a character (RFC 3629); 0 of none. */
static size_t character(const reader *r) {
    const unsigned char *s = (const unsigned char *)r->text + r->at;
    const size_t bytes = s[0] < 0x80                   ? 1
                         : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
                         : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                         : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                                       : 0;
    if (bytes > r->length - r->at)
        return 0;
    for (size_t i = 1; i < bytes; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    /* A longer form than needed, half of a UTF-16 pair, or past U+10FFFF. */
    const int wrong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
                      (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f);
    return wrong ? 0 : bytes;
}

/* The number of four hexadecimal digits behind "\u"; -1 where they are not. */
static int32_t code_unit(const char *escape, size_t length) {
    int32_t unit = 0;
    if (length < 6 || escape[0] != '\\' || escape[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        const char digit = escape[i], lower = (char)(digit | 0x20);
        if (!is_digit(digit) && !(lower >= 'a' && lower <= 'f'))
            return -1;
        unit = 16 * unit + (is_digit(digit) ? digit - '0' : lower - 'a' + 10);
    }
    return unit;
}

static int is_high(int32_t unit) {
    return unit >= 0xd800 && unit < 0xdc00;
}

static int is_low(int32_t unit) {
    return unit >= 0xdc00 && unit < 0xe000;
}

static int pass_escape(reader *r) {
    const char *at = r->text + r->at;
    const size_t left = r->length - r->at;
    const int32_t unit = code_unit(at, left);
    if (left >= 2 && at[1] != '\0' && strchr("\"\\/bfnrt", at[1]))
        r->at += 2;
    else if (unit > 0 && !is_high(unit) && !is_low(unit))
        r->at += 6;
    else if (is_high(unit) && is_low(code_unit(at + 6, left - 6)))
        r->at += 12;
    else
        return refuse(r, "an escape as in \\n or \\u00e9 for Unicode other than U+0000");
    return 1;
}

static int pass_string(reader *r, const char *what) {
    if (!take(r, '"'))
        return refuse(r, what);
    while (!take(r, '"')) {
        const size_t bytes = r->at < r->length ? character(r) : 0;
        if (bytes == 0 || (unsigned char)r->text[r->at] < ' ')
            return refuse(r, "a string's character in UTF-8, or its end");
        if (r->text[r->at] != '\\')
            r->at += bytes;
        else if (!pass_escape(r))
            return 0;
    }
    return 1;
}

_Static_assert(JSON_MAX_DEPTH == 100, "pass_container says so");

static int pass_value(reader *r, int depth);

static int pass_name(reader *r) {
    pass_space(r);
    if (!pass_string(r, "a name in quotes"))
        return 0;
    pass_space(r);
    return take(r, ':') || refuse(r, "':'");
}

static int pass_container(reader *r, char end, int depth) {
    if (depth == JSON_MAX_DEPTH)
        return refuse(r, "at most 100 objects and lists in each other");
    r->at++;
    pass_space(r);
    if (take(r, end))
        return 1;
    do {
        if (end == '}' && !pass_name(r))
            return 0;
        if (!pass_value(r, depth + 1))
            return 0;
    } while (take(r, ','));
    return take(r, end) || refuse(r, end == '}' ? "',' or '}'" : "',' or ']'");
}

/* A value and the white space on both of its sides. */
static int pass_value(reader *r, int depth) {
    pass_space(r);
    const char first = r->at < r->length ? r->text[r->at] : '\0';
    const int ok = first == '{'                      ? pass_container(r, '}', depth)
                   : first == '['                    ? pass_container(r, ']', depth)
                   : first == '-' || is_digit(first) ? pass_number(r)
                   : first == 't'                    ? pass_word(r, "true")
                   : first == 'f'                    ? pass_word(r, "false")
                   : first == 'n'                    ? pass_word(r, "null")
                                                     : pass_string(r, "a JSON value");
    if (ok)
        pass_space(r);
    return ok;
}

rope_status rope_json_check(const char *text, size_t length, const char **value) {
    reader r = {.text = text, .length = length};
    if (pass_value(&r, 0) && (r.at == length || refuse(&r, "nothing behind the value"))) {
        *value = text + strspn(text, " \t\r\n");
        return ROPE_OK;
    }
    const unsigned char byte = r.at < length ? (unsigned char)text[r.at] : 0;
    char found[8] = "the end";
    if (byte > ' ' && byte < 0x7f)
        snprintf(found, sizeof found, "'%c'", byte);
    else if (r.at < length)
        snprintf(found, sizeof found, "0x%02x", byte);
    return rope_fail(ROPE_ERROR_INVALID_VALUE, "byte %zu of %zu is %s; allowed is %s", r.at, length,
                     found, r.allowed);
}

/* ---- a text that passed ---- */

static const char *skip_space(const char *at) {
    while (is_space(*at))
        at++;
    return at;
}

static const char *skip_string(const char *at) {
    for (at++; *at != '"'; at++)
        at += *at == '\\';
    return at + 1;
}

static const char *skip_container(const char *at) {
    int depth = 0;
    do {
        if (*at == '"') {
            at = skip_string(at);
            continue;
        }
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        at++;
    } while (depth > 0);
    return at;
}

json_type rope_json_type(const char *value) {
    return *value == '{'   ? JSON_OBJECT
           : *value == '[' ? JSON_LIST
           : *value == '"' ? JSON_STRING
           : *value == 't' ? JSON_TRUE
           : *value == 'f' ? JSON_FALSE
           : *value == 'n' ? JSON_NULL
                           : JSON_NUMBER;
}

static const char *skip_value(const char *value) {
    const json_type type = rope_json_type(value);
    return type == JSON_STRING                        ? skip_string(value)
           : type == JSON_OBJECT || type == JSON_LIST ? skip_container(value)
                                                      : value + strcspn(value, ",]} \t\r\n");
}

size_t rope_json_length(const char *value) {
    return (size_t)(skip_value(value) - value);
}

/* What begins behind an opening bracket or a comma. */
static json_entry entry_at(const char *at, int has_name) {
    json_entry entry = {NULL, NULL};
    at = skip_space(at);
    if (*at == '}' || *at == ']')
        return entry;
    if (has_name) {
        entry.name = at;
        at = skip_space(skip_space(skip_string(at)) + 1);
    }
    entry.value = at;
    return entry;
}

json_entry rope_json_first(const char *container) {
    return entry_at(container + 1, *container == '{');
}

json_entry rope_json_next(json_entry entry) {
    const char *at = skip_space(skip_value(entry.value));
    return *at == ',' ? entry_at(at + 1, entry.name != NULL) : (json_entry){NULL, NULL};
}

double rope_json_number(const char *value) {
    return strtod(value, NULL);
}

/* Writes a character as UTF-8. Returns its end. */
static char *put_character(char *text, int32_t code) {
    if (code < 0x80) {
        *text++ = (char)code;
        return text;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const int32_t heads[] = {0, 0xc0, 0xe0, 0xf0};
    *text++ = (char)(heads[more] | code >> 6 * more);
    for (int i = more - 1; i >= 0; i--)
        *text++ = (char)(0x80 | (code >> 6 * i & 0x3f));
    return text;
}

/* Writes the character of an escape and moves both behind it. */
static void put_escape(const char **at, char **text) {
    static const char letters[] = "bfnrt", bytes[] = "\b\f\n\r\t";
    const char *letter = strchr(letters, (*at)[1]);
    int32_t unit = code_unit(*at, 6);
    if (unit < 0) {
        *(*text)++ = letter ? bytes[letter - letters] : (*at)[1];
        *at += 2;
        return;
    }
    *at += 6;
    if (is_high(unit)) {
        unit = 0x10000 + ((unit - 0xd800) << 10) + (code_unit(*at, 6) - 0xdc00);
        *at += 6;
    }
    *text = put_character(*text, unit);
}

size_t rope_json_string(const char *value, char *text) {
    const char *at = value + 1;
    char *end = text;
    while (*at != '"')
        if (*at == '\\')
            put_escape(&at, &end);
        else
            *end++ = *at++;
    *end = '\0';
    return (size_t)(end - text);
}
