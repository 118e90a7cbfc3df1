#include "common/log.h"

#include <pthread.h>
#include <ropekit/rope.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
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

static void send(int32_t level, const char *text) {
    pthread_mutex_lock(&sink_mutex);
    rope_log_function function = sink;
    void *user = sink_user;
    pthread_mutex_unlock(&sink_mutex);
    if (function)
        function(user, level, text);
    else
        fprintf(stderr, "ropekit: %s\n", text);
}

void rope_log(int32_t level, const char *format, ...) {
    static atomic_bool refused;
    const char *verbose = getenv("ROPE_VERBOSE");
    if (!verbose || !*verbose)
        return;
    char text[512];
    if (!rope_log_level_is_valid(verbose)) {
        snprintf(text, sizeof text, "ROPE_VERBOSE is \"%.60s\"; allowed is %s", verbose,
                 ROPE_LOG_LEVELS);
        if (!atomic_exchange(&refused, true))
            send(ROPE_LOG_CHOICE, text);
    } else if (verbose[0] - '0' >= level) {
        va_list list;
        va_start(list, format);
        vsnprintf(text, sizeof text, format, list);
        va_end(list);
        send(level, text);
    }
}
