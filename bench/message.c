#include "bench/message.h"

#include <stdarg.h>

void message(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("ropekit: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

bool succeeded(rope_status status, const char *what) {
    if (status != ROPE_OK)
        message("%s: %s: %s", what, rope_status_string(status), rope_last_error());
    return status == ROPE_OK;
}

FILE *text_open(bool json) {
    FILE *nowhere = json ? fopen("/dev/null", "w") : NULL;
    return nowhere ? nowhere : json ? stderr : stdout;
}

void text_close(FILE *file) {
    if (file != stdout && file != stderr)
        fclose(file);
}
