#include "bench/output/progress.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BAR_WIDTH 28
/* Seconds between two drawings. */
#define DRAW_EVERY 0.1

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void progress_begin(progress *p, int64_t total) {
    *p = (progress){.total = total > 0 ? total : 1, .start = now(), .visible = isatty(2) == 1};
}

static void draw(const progress *p, const char *label) {
    char bar[BAR_WIDTH + 1];
    int64_t filled = p->done * BAR_WIDTH / p->total;
    for (int64_t i = 0; i < BAR_WIDTH; i++)
        bar[i] = i < filled ? '#' : '.';
    bar[BAR_WIDTH] = '\0';
    double left = (p->drawn - p->start) * (double)(p->total - p->done) / (double)p->done;
    fprintf(stderr, "\r\033[K[%s] %3d%%  %.0f s left  %.60s", bar, (int)(p->done * 100 / p->total),
            left, label);
    fflush(stderr);
}

void progress_step(progress *p, const char *label) {
    p->done += p->weight ? p->weight : 1;
    if (p->done > p->total)
        p->done = p->total;
    double time = now();
    if (!p->visible || time - p->drawn < DRAW_EVERY)
        return;
    p->drawn = time;
    draw(p, label);
}

void progress_end(progress *p) {
    if (p->visible)
        fputs("\r\033[K", stderr);
}
