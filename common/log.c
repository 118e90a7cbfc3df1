#include "common/log.h"

#include <pthread.h>
#include <ropekit/rope.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t sink_mutex = PTHREAD_MUTEX_INITIALIZER;
static rope_log_function sink;
static void *sink_user;

void rope_set_log(rope_log_function function, void *user) {
    pthread_mutex_lock(&sink_mutex);
    sink = function;
    sink_user = user;
    pthread_mutex_unlock(&sink_mutex);
}

int rope_log_level_is_valid(const char *value) {
    return value[0] >= '0' && value[0] <= '2' && value[1] == 0;
}

void rope_log(int32_t level, const char *format, ...) {
    const char *verbose = getenv("ROPE_VERBOSE");
    if (!verbose || !rope_log_level_is_valid(verbose) || verbose[0] - '0' < level)
        return;
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    pthread_mutex_lock(&sink_mutex);
    rope_log_function function = sink;
    void *user = sink_user;
    pthread_mutex_unlock(&sink_mutex);
    if (function)
        function(user, level, text);
    else
        fprintf(stderr, "ropekit: %s\n", text);
}
