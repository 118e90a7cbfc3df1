/* What a JSON parser of the system lets pass and RFC 8259 does not. */
#ifndef ROPEKIT_BENCH_JSON_SCAN_H
#define ROPEKIT_BENCH_JSON_SCAN_H

#include <stddef.h>

/*
 * The offset of the first byte that no JSON has where it stands: a control character, a byte that
 * is not UTF-8, one outside of strings that is not ASCII, a number's byte as in 012, 1. or -, an
 * escape that is none or that of a NUL. Returns length where there is none; brackets, commas and
 * names are not looked at.
 */
size_t json_scan(const char *text, size_t length);

#endif
