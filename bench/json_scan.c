#include "bench/json_scan.h"

#include <stdbool.h>
#include <string.h>

static bool is_digit(const char *text, size_t at, size_t length) {
    return at < length && text[at] >= '0' && text[at] <= '9';
}

/* Passes digits; false without one. */
static bool pass_digits(const char *text, size_t *at, size_t length) {
    const size_t start = *at;
    while (is_digit(text, *at, length))
        ++*at;
    return *at > start;
}

/* Passes a number; false at the byte that does not belong to one. */
static bool pass_number(const char *text, size_t *at, size_t length) {
    *at += text[*at] == '-';
    if (*at < length && text[*at] == '0') {
        ++*at;
        if (is_digit(text, *at, length))
            return false;
    } else if (!pass_digits(text, at, length)) {
        return false;
    }
    if (*at < length && text[*at] == '.') {
        ++*at;
        if (!pass_digits(text, at, length))
            return false;
    }
    if (*at == length || (text[*at] != 'e' && text[*at] != 'E'))
        return true;
    ++*at;
    if (*at < length && (text[*at] == '+' || text[*at] == '-'))
        ++*at;
    return pass_digits(text, at, length);
}

/* Bytes of a UTF-8 character (RFC 3629); 0 of none. */
static size_t character(const char *text, size_t at, size_t length) {
    const unsigned char *s = (const unsigned char *)text + at;
    const size_t bytes = s[0] < 0x80                   ? 1
                         : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
                         : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                         : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                                       : 0;
    if (bytes > length - at)
        return 0;
    for (size_t i = 1; i < bytes; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    /* A longer form than needed, half of a UTF-16 pair, or past U+10FFFF. */
    const bool wrong = (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
                       (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f);
    return wrong ? 0 : bytes;
}

/* Passes an escape as in \n or \u00e9; false where \u has no four digits, or those of a NUL. */
static bool pass_escape(const char *text, size_t *at, size_t length) {
    if (length - *at < 2 || !strchr("\"\\/bfnrtu", text[*at + 1]) || text[*at + 1] == '\0')
        return false;
    if (text[*at + 1] != 'u') {
        *at += 2;
        return true;
    }
    if (length - *at < 6 || memcmp(text + *at + 2, "0000", 4) == 0)
        return false;
    for (size_t i = 2; i < 6; i++)
        if (text[*at + i] == '\0' || !strchr("0123456789abcdefABCDEF", text[*at + i]))
            return false;
    *at += 6;
    return true;
}

/* Passes a string from behind its opening quote; false at a byte that no string has. */
static bool pass_string(const char *text, size_t *at, size_t length) {
    while (*at < length && text[*at] != '"') {
        const size_t bytes = character(text, *at, length);
        if (bytes == 0 || (unsigned char)text[*at] < ' ')
            return false;
        if (text[*at] != '\\')
            *at += bytes;
        else if (!pass_escape(text, at, length))
            return false;
    }
    *at += *at < length;
    return true;
}

size_t json_scan(const char *text, size_t length) {
    for (size_t at = 0; at < length;) {
        const unsigned char byte = (unsigned char)text[at];
        if (byte == '"') {
            at++;
            if (!pass_string(text, &at, length))
                return at;
        } else if (byte == '-' || is_digit(text, at, length)) {
            if (!pass_number(text, &at, length))
                return at;
        } else if (byte > '~' || byte == 0 || (byte < ' ' && !strchr("\t\r\n", byte))) {
            return at;
        } else {
            at++;
        }
    }
    return length;
}
