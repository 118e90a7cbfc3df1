#include "bench/measure/measure.h"

#include "bench/output/message.h"
#include "bench/workload/angle_table.h"
#include "bench/workload/target.h"
#include "tests/oracle/oracle.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FLOORS_MOST 8
/* Time of one look at the clock, long beside its resolution. */
#define LOOK_SECONDS 1e-3
#define SETS_MOST 32768
/* Uncounted runs of a look on a GPU, whose caches are small beside what a counted look moves. */
#define GPU_WARM_RUNS 2
/* A run as long finds of the caches what it would find anyway: no uncounted run goes ahead of it.
 */
#define LONG_SECONDS 0.1
/* After so long a case of attention ends, once it has the least rounds. */
#define CASE_SECONDS 30.0
#define ROUNDS_LEAST 5

/* Seconds of one run of some calls, one after the other. */
typedef struct cost {
    double kernel, apply, host;
} cost;

/* Samples of one round. */
typedef struct round_samples {
    cost calls;
    double floor[FLOORS_MOST][2]; /* before and after */
} round_samples;

typedef struct meter {
    const workload *w;
    const workload_call *call;
    int32_t floor_kind; /* ROPE_TIME_COPY or ROPE_TIME_UPDATE */
    int32_t floors;
    bool on_cpu;
    int64_t iterations;
    int64_t first; /* set that the next look starts at */
    int64_t count; /* sets that one look visits */
    bool is_long;  /* one run of the whole */
} meter;

int64_t measure_sets(const options *o, const rope_device_info *info, size_t tensor_bytes) {
    if (o->cache != CACHE_COLD || tensor_bytes == 0)
        return 1;
    size_t set = tensor_bytes * (shape_in_place(o, CHECK_Q) ? 1 : 2);
    size_t wanted = 2 * (size_t)info->cache_bytes;
    if (info->memory_bytes > 0 && wanted > (size_t)info->memory_bytes / 4)
        wanted = (size_t)info->memory_bytes / 4;
    int64_t sets = (int64_t)(wanted / set) + 1;
    return sets > SETS_MOST ? SETS_MOST : sets;
}

size_t measure_table_bytes(const workload *w, const options *o) {
    if (w->desc.angle_mode != ROPE_ANGLE_TABLE)
        return 0;
    int64_t rows = o->position_ids == IDS_RANDOM ? o->batch * o->tokens : o->tokens;
    int32_t dtype = w->desc.table_dtype ? w->desc.table_dtype : ROPE_F32;
    return 2 * (size_t)(rows * angle_table_width(&w->desc) * oracle_dtype_size(dtype));
}

double measure_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- a look at the clock --- */

/* Runs on the sets that follow those of the last. They go round, so that they find none of their
 * own tensors in the cache while the sets together exceed it. */
static bool time_runs(meter *m, int64_t iterations, rope_timing *timing) {
    const workload *w = m->w;
    timing->struct_size = sizeof *timing;
    if (m->first + m->count > w->set_count)
        m->first = 0;
    size_t start = (size_t)m->first * w->pitch;
    timing->iterations = iterations;
    timing->plan = m->call->plan;
    timing->workspace = m->call->workspace;
    timing->args = (const char *)m->call->sets + m->call->operation->size * (size_t)m->first;
    timing->args_count = m->count;
    timing->target = (char *)w->target + start;
    timing->source = w->source ? (char *)w->source + start : NULL;
    timing->bytes = w->floor_bytes;
    timing->pitch = w->pitch;
    m->first += m->count;
    return succeeded(rope_time(w->device, timing), "rope_time");
}

/* One look, after one that does not count: what ran before left a cache of its own behind. After a
 * copy around the cache a set in the L3 takes half a dozen runs to be there again; after one
 * through it, lines wait to be written. */
static bool look(meter *m, rope_timing timing, double *seconds, double *host) {
    rope_timing before = timing;
    before.graph = 0;
    const int64_t runs = m->on_cpu || m->iterations < GPU_WARM_RUNS ? m->iterations : GPU_WARM_RUNS;
    const bool ready = m->is_long && timing.kind <= ROPE_TIME_KERNEL;
    if ((!ready && !time_runs(m, runs, &before)) || !time_runs(m, m->iterations, &timing))
        return false;
    *seconds += timing.seconds;
    if (host)
        *host += timing.host_seconds;
    return true;
}

static const rope_timing of_kernel = {.kind = ROPE_TIME_KERNEL, .graph = 1};
static const rope_timing of_apply = {.kind = ROPE_TIME_APPLY};

/* Runs that make one look long enough, found with the kernels themselves. */
static bool calibrate(meter *m) {
    double seconds = 0;
    m->iterations = m->count = 1;
    for (;;) {
        seconds = 0;
        for (m->call = m->w->calls; m->call < m->w->calls + m->w->parts; m->call++)
            if (!look(m, of_kernel, &seconds, NULL))
                return false;
        m->is_long = m->is_long || (m->iterations == 1 && seconds > LONG_SECONDS);
        if (seconds * (double)m->iterations >= LOOK_SECONDS / 4 || m->iterations >= 1 << 24)
            break;
        m->iterations *= 4;
        m->count = m->iterations < m->w->set_count ? m->iterations : m->w->set_count;
    }
    m->iterations = (int64_t)(LOOK_SECONDS / seconds) + 1;
    m->count = m->iterations < m->w->set_count ? m->iterations : m->w->set_count;
    return true;
}

/* --- a round --- */

static bool look_at_floors(meter *m, round_samples *s, int side) {
    rope_timing floor = {.kind = m->floor_kind, .graph = 1};
    m->call = m->w->calls;
    for (int32_t i = 0; i < m->floors; i++, floor.candidate++) {
        s->floor[i][side] = 0;
        if (!look(m, floor, &s->floor[i][side], NULL))
            return false;
    }
    return true;
}

static bool look_at_calls(meter *m, cost *sum) {
    *sum = (cost){0};
    for (m->call = m->w->calls; m->call < m->w->calls + m->w->parts; m->call++)
        if (!look(m, of_kernel, &sum->kernel, NULL) || !look(m, of_apply, &sum->apply, &sum->host))
            return false;
    return true;
}

static bool one_round(meter *m, round_samples *s) {
    return look_at_floors(m, s, 0) && look_at_calls(m, &s->calls) && look_at_floors(m, s, 1);
}

/* --- what the rounds say --- */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

summary measure_summary(double *values, int64_t count) {
    qsort(values, (size_t)count, sizeof *values, ascending);
    double median =
        count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
    return (summary){median, values[(count - 1) / 4], values[count - 1 - (count - 1) / 4]};
}

/* What is summarized of a round, with a floor. */
typedef struct figures {
    double floor, self_ratio, kernel, apply, host, kernel_ratio, apply_ratio;
} figures;

static figures figures_of(const round_samples *s, int32_t floor) {
    const double *pair = s->floor[floor], mean = 0.5 * (pair[0] + pair[1]);
    const cost *calls = &s->calls;
    return (figures){.floor = mean,
                     .self_ratio = pair[0] / pair[1],
                     .kernel = calls->kernel,
                     .apply = calls->apply,
                     .host = calls->host,
                     .kernel_ratio = mean / calls->kernel,
                     .apply_ratio = mean / calls->apply};
}

/* Of the figure at an offset in figures. */
static summary over_rounds(const round_samples *s, int64_t rounds, int32_t floor, size_t offset) {
    double values[OPTIONS_ROUNDS_MOST];
    for (int64_t r = 0; r < rounds; r++) {
        const figures f = figures_of(&s[r], floor);
        memcpy(&values[r], (const char *)&f + offset, sizeof values[r]);
    }
    return measure_summary(values, rounds);
}

#define SUMMARY(member) over_rounds(s, rounds, best, offsetof(figures, member))

static const char *floor_operation(int32_t kind) {
    return kind == ROPE_TIME_COPY ? "copy" : "update";
}

static void reduce(const meter *m, const round_samples *s, int64_t rounds, measurement *out) {
    int32_t best = 0;
    double least = over_rounds(s, rounds, 0, offsetof(figures, floor)).median;
    for (int32_t i = 1; i < m->floors; i++) {
        const double median = over_rounds(s, rounds, i, offsetof(figures, floor)).median;
        best = median < least ? i : best;
        least = median < least ? median : least;
    }
    *out = (measurement){
        .floor_kernel = rope_device_kernel(m->w->device, floor_operation(m->floor_kind), best),
        .floor = SUMMARY(floor),
        .self_ratio = SUMMARY(self_ratio),
        .kernel = SUMMARY(kernel),
        .apply = SUMMARY(apply),
        .kernel_ratio = SUMMARY(kernel_ratio),
        .apply_ratio = SUMMARY(apply_ratio),
        .host = SUMMARY(host),
        .rounds = rounds,
        .iterations = m->iterations,
    };
}

bool measure_run(const workload *w, int64_t rounds, measurement *out) {
    meter m = {.w = w, .call = w->calls};
    rope_device_info info = {.struct_size = sizeof info};
    if (!succeeded(rope_device_get(w->device, &info), "device"))
        return false;
    m.on_cpu = strcmp(info.backend, "cpu") == 0;
    m.floor_kind = w->source ? ROPE_TIME_COPY : ROPE_TIME_UPDATE;
    while (m.floors < FLOORS_MOST &&
           rope_device_kernel(w->device, floor_operation(m.floor_kind), m.floors))
        m.floors++;
    round_samples *samples = calloc((size_t)rounds, sizeof *samples);
    bool ready = samples && calibrate(&m) && one_round(&m, &samples[0]); /* warms up */
    int64_t done = 0;
    const double begin = measure_now();
    while (ready && done < rounds &&
           (!w->o->attention || done < ROUNDS_LEAST || measure_now() - begin < CASE_SECONDS)) {
        ready = one_round(&m, &samples[done]);
        done++;
    }
    if (ready)
        reduce(&m, samples, done, out);
    free(samples);
    return ready;
}
