#include "bench/measure/measure.h"

#include "bench/measure/interrupt.h"
#include "bench/output/message.h"
#include "bench/workload/angle_table.h"
#include "bench/workload/target.h"
#include "tests/oracle/oracle.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FLOORS_MOST 8
#define ROUNDS_MOST 1000
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
/* OpenMP's threads spin for some milliseconds before they sleep. */
#define SPIN_NANOSECONDS 20000000

/* Seconds of one run of some calls, one after the other: kernels, functions and the host's. */
typedef struct cost {
    double kernel, apply, host;
} cost;

/* Samples of one round. */
typedef struct round_samples {
    cost whole, steps, beside;
    double launch, alone;
    double floor[FLOORS_MOST][2]; /* before and after */
} round_samples;

typedef struct meter {
    const workload *w;
    const workload_call *call;
    int32_t floor_kind; /* ROPE_TIME_COPY or ROPE_TIME_UPDATE */
    int32_t floors;
    int32_t threads; /* of the CPU's kernels; 0: of none */
    int64_t iterations;
    int64_t first; /* set that the next look starts at */
    int64_t count; /* sets that one look visits */
    bool is_long;  /* one run of the call */
} meter;

int64_t measure_sets(const options *o, const rope_device_info *info, size_t tensor_bytes) {
    if (o->cache != CACHE_COLD || tensor_bytes == 0)
        return 1;
    size_t set = tensor_bytes * (workload_in_place(o) ? 1 : 2);
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

int64_t measure_steps(int64_t rounds) {
    return rounds;
}

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
    timing->args = (const char *)m->call->sets + m->call->size * (size_t)m->first;
    timing->args_count = m->count;
    timing->target = (char *)w->target + start;
    timing->source = w->source ? (char *)w->source + start : NULL;
    timing->bytes = w->floor_bytes;
    timing->pitch = w->pitch;
    m->first += m->count;
    return succeeded(rope_time(w->device, timing), "rope_time");
}

/* One look at the clock, after one that does not count: what ran before left a cache of its own
 * behind. After a copy around the cache a set in the L3 takes half a dozen runs to be there again;
 * after one through it, lines wait to be written. */
static bool look(meter *m, rope_timing timing, double *seconds, double *host) {
    rope_timing before = timing;
    before.graph = 0;
    const int64_t runs =
        m->threads || m->iterations < GPU_WARM_RUNS ? m->iterations : GPU_WARM_RUNS;
    const bool ready = m->is_long && timing.kind <= ROPE_TIME_KERNEL;
    if ((!ready && !time_runs(m, runs, &before)) || !time_runs(m, m->iterations, &timing))
        return false;
    *seconds = timing.seconds;
    *host = timing.host_seconds;
    return true;
}

static const rope_timing of_kernel = {.kind = ROPE_TIME_KERNEL, .graph = 1};
static const rope_timing of_apply = {.kind = ROPE_TIME_APPLY};

/* Kernels of the whole. */
static bool look_at_kernels(meter *m, double *seconds) {
    double one, host;
    *seconds = 0;
    for (m->call = m->w->calls; m->call < m->w->calls + m->w->parts; m->call++) {
        if (!look(m, of_kernel, &one, &host))
            return false;
        *seconds += one;
    }
    m->call = m->w->calls;
    return true;
}

/* Runs that make one look long enough, found with the kernels themselves. */
static bool calibrate(meter *m) {
    double seconds = 0;
    m->iterations = 1;
    m->count = 1;
    if (!look_at_kernels(m, &seconds))
        return false;
    m->is_long = seconds > LONG_SECONDS;
    while (seconds * (double)m->iterations < LOOK_SECONDS / 4 && m->iterations < 1 << 24) {
        m->iterations *= 4;
        m->count = m->iterations < m->w->set_count ? m->iterations : m->w->set_count;
        if (!look_at_kernels(m, &seconds))
            return false;
    }
    m->iterations = (int64_t)(LOOK_SECONDS / seconds) + 1;
    m->count = m->iterations < m->w->set_count ? m->iterations : m->w->set_count;
    return true;
}

static bool floors(meter *m, round_samples *s, int side) {
    double host;
    rope_timing floor = {.kind = m->floor_kind, .graph = 1};
    for (int32_t i = 0; i < m->floors; i++, floor.candidate++)
        if (!look(m, floor, &s->floor[i][side], &host))
            return false;
    return true;
}

/* By one thread, whose processor the uncounted runs wake. */
static bool look_alone(meter *m, double *seconds) {
    if (m->threads <= 1)
        return true;
    nanosleep(&(struct timespec){.tv_nsec = SPIN_NANOSECONDS}, NULL);
    target_use_threads(1);
    bool looked = look_at_kernels(m, seconds);
    target_use_threads(m->threads);
    return looked;
}

/* Adds what a call takes. */
static bool look_at(meter *m, const workload_call *call, cost *sum) {
    double kernel = 0, apply = 0, host = 0, unused;
    m->call = call;
    const bool looked = look(m, of_kernel, &kernel, &unused) && look(m, of_apply, &apply, &host);
    m->call = m->w->calls;
    sum->kernel += kernel;
    sum->apply += apply;
    sum->host += host;
    return looked;
}

static bool look_at_whole(meter *m, round_samples *s) {
    bool looked = true;
    s->whole = (cost){0};
    for (int32_t i = 0; looked && i < m->w->parts; i++)
        looked = look_at(m, &m->w->calls[i], &s->whole);
    return looked;
}

static bool look_at_steps(meter *m, round_samples *s) {
    bool looked = true;
    s->steps = s->beside = (cost){0};
    for (int32_t i = m->w->parts; looked && i < m->w->timed_count; i++) {
        const cost before = s->steps;
        looked = look_at(m, &m->w->calls[i], &s->steps);
        if (m->w->calls[i].beside) {
            s->beside.kernel += s->steps.kernel - before.kernel;
            s->beside.apply += s->steps.apply - before.apply;
            s->beside.host += s->steps.host - before.host;
        }
    }
    return looked && (!m->w->rotation.plan || look_at(m, &m->w->rotation, &s->beside));
}

static bool one_round(meter *m, round_samples *s, bool steps_first) {
    double seconds;
    rope_timing launch = {.kind = m->floor_kind};
    return floors(m, s, 0) && (!steps_first || look_at_steps(m, s)) && look_at_whole(m, s) &&
           look(m, launch, &seconds, &s->launch) && (steps_first || look_at_steps(m, s)) &&
           floors(m, s, 1) && look_alone(m, &s->alone);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static summary summarize(double *values, int64_t count) {
    qsort(values, (size_t)count, sizeof *values, ascending);
    double median =
        count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
    return (summary){median, values[(count - 1) / 4], values[count - 1 - (count - 1) / 4]};
}

/* What is summarized over the rounds. */
enum {
    OF_KERNEL,
    OF_APPLY,
    OF_HOST,
    OF_LAUNCH,
    OF_FLOOR,
    OF_KERNEL_RATIO,
    OF_APPLY_RATIO,
    OF_SELF_RATIO,
    OF_SPEEDUP,
    OF_STEPS,
    OF_STEPS_APPLY,
    OF_STEPS_HOST,
    OF_STEPS_RATIO,
    OF_STEPS_APPLY_RATIO,
    OF_GAIN,
    OF_BESIDE,
    OF_BESIDE_APPLY,
    OF_BESIDE_HOST,
    OF_BESIDE_RATIO,
    OF_BESIDE_APPLY_RATIO,
    OF_MULTIPLE
};

static summary over_rounds(const round_samples *s, int64_t rounds, int32_t floor, int what) {
    double values[ROUNDS_MOST];
    for (int64_t r = 0; r < rounds; r++) {
        const double *pair = s[r].floor[floor];
        double mean = 0.5 * (pair[0] + pair[1]);
        const cost *whole = &s[r].whole, *steps = &s[r].steps, *beside = &s[r].beside;
        const double value[] = {whole->kernel,
                                whole->apply,
                                whole->host,
                                s[r].launch,
                                mean,
                                mean / whole->kernel,
                                mean / whole->apply,
                                pair[0] / pair[1],
                                s[r].alone / whole->kernel,
                                steps->kernel,
                                steps->apply,
                                steps->host,
                                mean / steps->kernel,
                                mean / steps->apply,
                                steps->kernel / whole->kernel,
                                beside->kernel,
                                beside->apply,
                                beside->host,
                                mean / beside->kernel,
                                mean / beside->apply,
                                whole->kernel / beside->kernel};
        values[r] = value[what];
    }
    return summarize(values, rounds);
}

static const char *floor_operation(int32_t kind) {
    return kind == ROPE_TIME_COPY ? "copy" : "update";
}

static void reduce_steps(const round_samples *s, int64_t rounds, int32_t best, measurement *out) {
    out->steps = over_rounds(s, rounds, best, OF_STEPS);
    out->steps_apply = over_rounds(s, rounds, best, OF_STEPS_APPLY);
    out->steps_ratio = over_rounds(s, rounds, best, OF_STEPS_RATIO);
    out->steps_apply_ratio = over_rounds(s, rounds, best, OF_STEPS_APPLY_RATIO);
    out->gain = over_rounds(s, rounds, best, OF_GAIN);
    out->steps_host = over_rounds(s, rounds, best, OF_STEPS_HOST).median;
}

static void reduce_beside(const round_samples *s, int64_t rounds, int32_t best, measurement *out) {
    out->beside = over_rounds(s, rounds, best, OF_BESIDE);
    out->beside_apply = over_rounds(s, rounds, best, OF_BESIDE_APPLY);
    out->beside_ratio = over_rounds(s, rounds, best, OF_BESIDE_RATIO);
    out->beside_apply_ratio = over_rounds(s, rounds, best, OF_BESIDE_APPLY_RATIO);
    out->multiple = over_rounds(s, rounds, best, OF_MULTIPLE);
    out->beside_host = over_rounds(s, rounds, best, OF_BESIDE_HOST).median;
}

static void reduce(const meter *m, const round_samples *s, int64_t rounds, measurement *out) {
    int32_t best = 0;
    for (int32_t i = 1; i < m->floors; i++)
        if (over_rounds(s, rounds, i, OF_FLOOR).median <
            over_rounds(s, rounds, best, OF_FLOOR).median)
            best = i;
    *out = (measurement){
        .floor_kernel = rope_device_kernel(m->w->device, floor_operation(m->floor_kind), best),
        .kernel = over_rounds(s, rounds, best, OF_KERNEL),
        .apply = over_rounds(s, rounds, best, OF_APPLY),
        .floor = over_rounds(s, rounds, best, OF_FLOOR),
        .kernel_ratio = over_rounds(s, rounds, best, OF_KERNEL_RATIO),
        .apply_ratio = over_rounds(s, rounds, best, OF_APPLY_RATIO),
        .self_ratio = over_rounds(s, rounds, best, OF_SELF_RATIO),
        .speedup = over_rounds(s, rounds, best, OF_SPEEDUP),
        .host_seconds = over_rounds(s, rounds, best, OF_HOST).median,
        .launch_seconds = over_rounds(s, rounds, best, OF_LAUNCH).median,
        .rounds = rounds,
        .iterations = m->iterations,
    };
    const bool steps = m->w->timed_count > m->w->parts;
    if (steps)
        reduce_steps(s, rounds, best, out);
    if (m->w->rotation.plan || (m->w->attention && steps))
        reduce_beside(s, rounds, best, out);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool measure_run(const workload *w, int64_t rounds, progress *bar, const char *label,
                 measurement *out) {
    meter m = {.w = w, .call = w->calls};
    rope_device_info info = {.struct_size = sizeof info};
    if (!succeeded(rope_device_get(w->device, &info), "device"))
        return false;
    m.threads = strcmp(info.backend, "cpu") == 0 ? target_threads() : 0;
    m.floor_kind = w->source ? ROPE_TIME_COPY : ROPE_TIME_UPDATE;
    while (m.floors < FLOORS_MOST &&
           rope_device_kernel(w->device, floor_operation(m.floor_kind), m.floors))
        m.floors++;
    if (rounds > ROUNDS_MOST)
        rounds = ROUNDS_MOST;
    round_samples *samples = calloc((size_t)rounds, sizeof *samples);
    round_samples warm_up;
    bool ready = samples && calibrate(&m) && one_round(&m, &warm_up, false);
    int64_t done = 0;
    const double begin = now();
    while (ready && done < rounds && !interrupted() &&
           (!w->attention || done < ROUNDS_LEAST || now() - begin < CASE_SECONDS)) {
        ready = one_round(&m, &samples[done], done % 2);
        done++;
        progress_step(bar, label);
    }
    for (int64_t left = done; ready && left < rounds && !interrupted(); left++)
        progress_step(bar, label);
    if (ready && done > 0)
        reduce(&m, samples, done, out);
    free(samples);
    return ready && done > 0;
}
