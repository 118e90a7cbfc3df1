/* A progress bar on stderr with the time left; silent where stderr is no terminal. */
#ifndef ROPEKIT_BENCH_PROGRESS_H
#define ROPEKIT_BENCH_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    int64_t total, done;
    int64_t weight;      /* steps that one counts as; 0: one */
    double start, drawn; /* seconds */
    bool visible;
} progress;

void progress_begin(progress *p, int64_t total);
/* `weight` of total steps are done; label says what comes next. */
void progress_step(progress *p, const char *label);
/* Removes the bar. */
void progress_end(progress *p);

#endif
