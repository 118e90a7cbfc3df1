/* Numbers for people. */
#ifndef ROPEKIT_BENCH_FORMAT_H
#define ROPEKIT_BENCH_FORMAT_H

#include <stdint.h>

typedef struct number_text {
    char text[32];
} number_text;

/* As in "1.24 us". */
number_text format_seconds(double seconds);
/* As in "40.0 KiB". */
number_text format_bytes(double bytes);
/* As in "2 threads", or "1 thread" of one. */
number_text format_amount(int64_t count, const char *noun);

#endif
