#include "bench/output/message.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

/* One line, whatever a file or an argument held: a control character becomes a question mark. */
void message(const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    fprintf(stderr, "ropekit: %s\n", text);
}

bool succeeded(rope_status status, const char *what) {
    if (status != ROPE_OK)
        message("%s: %s: %s", what, rope_status_string(status), rope_last_error());
    return status == ROPE_OK;
}

void message_progress(int32_t done, int32_t total, const char *label) {
    if (isatty(2) != 1)
        return;
    fputs("\r\033[K", stderr);
    if (label)
        fprintf(stderr, "[%d/%d] %.60s", done, total, label);
    fflush(stderr);
}

bool text_flush(FILE *file) {
    static bool told;
    errno = 0;
    if (fflush(file) == 0 && !ferror(file))
        return true;
    if (!told)
        message("standard output cannot be written: %s",
                errno ? strerror(errno) : "an earlier write failed");
    told = true;
    return false;
}

FILE *text_open(bool json) {
    FILE *nowhere = json ? fopen("/dev/null", "w") : NULL;
    return nowhere ? nowhere : json ? stderr : stdout;
}

void text_close(FILE *file) {
    if (file != stdout && file != stderr)
        fclose(file);
}
