/* Times the kernels of attention and of its backward that a device has, those of every backend that
 * has it, and writes which was fastest: a table by which calls choose (docs/attention.md). */
#include "bench/attention/calls.h"
#include "bench/attention/workload.h"
#include "bench/commands/commands.h"
#include "bench/measure/interrupt.h"
#include "bench/measure/measure.h"
#include "bench/measure/suites.h"
#include "bench/output/format.h"
#include "bench/output/message.h"
#include "bench/workload/target.h"

#include <cjson/cJSON.h>

#include <ropekit/backend.h>

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Time of one look at the clock, and of a case after which it has no further round. */
#define LOOK_SECONDS 0.005
#define CASE_SECONDS 1.0
/* A run as long is looked at once. */
#define LONG_SECONDS 0.25
/* A kernel is not started where it would take longer by the most operations a second that it had so
 * far, or as many times as long as another. */
#define MOST_SECONDS 2.0
#define SLOW 20
/* As many times as long as the fastest by one look: there are no more. */
#define BEHIND 1.3
/* Another kernel than the first is taken where it saves as much: less is the noise of a machine. */
#define WORTH 0.01
/* A quick run leaves out what takes more floating-point operations, and does not fill caches anew.
 */
#define QUICK_FLOPS 1e8

enum { KERNELS_MOST = 8, ROUNDS_MOST = 1000, DEVICES_MOST = 4, FORWARD = 0, BACKWARD = 1 };
static const char *const operations[] = {"attention", "attention_backward"};

typedef struct tuned_kernel {
    rope_device *device;
    const char *backend, *kernel;
    double rate[2]; /* most operations a second so far, of 16 and of 32 bits; 0: none */
} tuned_kernel;

typedef struct tune_run {
    target t;
    rope_device *devices[DEVICES_MOST]; /* of other backends */
    int32_t device_count;
    tuned_kernel kernels[2][KERNELS_MOST];
    int32_t kernel_count[2];
    bench_case *cases;
    int32_t count;
    cJSON *points;
} tune_run;

/* A kernel at a case. */
typedef struct rival {
    tuned_kernel *of;
    const workload_call *call; /* NULL: left out */
    int64_t iterations, looks;
    double seconds; /* of one run, by the last look; then their median */
    double least;   /* of looks as long as the others' */
    double samples[ROUNDS_MOST];
} rival;

typedef struct race {
    const bench_case *of;
    workload w;
    rival rivals[KERNELS_MOST];
    int32_t count, declined;
    double least; /* seconds of the fastest; 0: none yet */
} race;

/* --- kernels --- */

static void add_kernels(tune_run *run, rope_device *device, const char *backend) {
    for (int d = FORWARD; d <= BACKWARD; d++) {
        const char *kernel;
        for (int32_t i = 0; (kernel = rope_device_kernel(device, operations[d], i)) &&
                            run->kernel_count[d] < KERNELS_MOST;
             i++)
            run->kernels[d][run->kernel_count[d]++] =
                (tuned_kernel){.device = device, .backend = backend, .kernel = kernel};
    }
}

/* Kernels of the opened backend, which come first, and of others that have the same device. */
static void list_kernels(tune_run *run, const options *o) {
    add_kernels(run, run->t.device, run->t.info.backend);
    for (int32_t i = 0; i < rope_backend_count() && run->device_count < DEVICES_MOST; i++) {
        rope_backend_info backend = {.struct_size = sizeof backend};
        rope_device_info info = {.struct_size = sizeof info};
        rope_device *device;
        if (rope_backend_get(i, &backend) != ROPE_OK || backend.status != ROPE_OK ||
            backend.device_count <= o->desc.device ||
            strcmp(backend.name, run->t.info.backend) == 0 ||
            rope_device_open(backend.name, o->desc.device, &device) != ROPE_OK)
            continue;
        run->devices[run->device_count++] = device;
        if (rope_device_get(device, &info) == ROPE_OK && strcmp(info.name, run->t.info.name) == 0)
            add_kernels(run, device, backend.name);
    }
}

/* --- what is left out --- */

__attribute__((format(printf, 3, 4))) static void
leave_out(const bench_case *c, const tuned_kernel *kernel, const char *format, ...) {
    char reason[400];
    va_list list;
    va_start(list, format);
    vsnprintf(reason, sizeof reason, format, list);
    va_end(list);
    message("%s:%s is left out of %s: %s", kernel->backend, kernel->kernel, c->settings, reason);
}

/* --- timing --- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int width_of(const workload *w) {
    return w->desc.dtype == ROPE_F32;
}

static void note_least(race *c, double seconds) {
    c->least = c->least == 0 || seconds < c->least ? seconds : c->least;
}

/* Seconds of one run. A kernel that does not take the call, or fails, is left out. */
static void look(race *c, rival *r) {
    rope_timing timing = {.struct_size = sizeof timing,
                          .kind = ROPE_TIME_KERNEL,
                          .graph = 1,
                          .iterations = r->iterations,
                          .plan = r->call->plan,
                          .args = r->call->sets,
                          .args_count = c->w.set_count,
                          .workspace = r->call->workspace};
    const rope_status status = rope_time(r->of->device, &timing);
    if (status != ROPE_OK) {
        leave_out(c->of, r->of, "%s", rope_last_error());
        r->call = NULL;
        r->seconds = 0;
        return;
    }
    double *rate = &r->of->rate[width_of(&c->w)];
    r->seconds = timing.seconds;
    r->least = r->looks && r->least < r->seconds ? r->least : r->seconds;
    *rate = c->w.flops > *rate * r->seconds ? c->w.flops / r->seconds : *rate;
    note_least(c, r->seconds);
}

/* Runs that make a look long enough and visit all sets, unless that takes much longer. */
static int64_t iterations_for(const race *c, double seconds) {
    const int64_t sets = c->w.set_count,
                  needed = seconds > 0 ? (int64_t)(LOOK_SECONDS / seconds) + 1 : sets;
    return needed < sets && seconds * (double)sets < 4 * LOOK_SECONDS ? sets : needed;
}

/* The first run of each, by which it is left out or its next look is as long as the others'. */
static void look_first(race *c) {
    for (int32_t i = 0; i < c->count && !interrupted(); i++)
        look(c, &c->rivals[i]);
    const double most = SLOW * c->least;
    c->least = 0;
    for (int32_t i = 0; i < c->count && !interrupted(); i++) {
        rival *r = &c->rivals[i];
        if (!r->call)
            continue;
        if (r->seconds > most) {
            leave_out(c->of, r->of, "it takes %s, the fastest %s", format_seconds(r->seconds).text,
                      format_seconds(most / SLOW).text);
            r->call = NULL;
        } else if (r->seconds > LONG_SECONDS) {
            r->samples[r->looks++] = r->seconds;
            note_least(c, r->seconds);
        } else {
            r->iterations = iterations_for(c, r->seconds);
            look(c, r);
        }
    }
}

static bool may_win(const race *c, const rival *r) {
    return r->call && r->least <= BEHIND * c->least;
}

/* The median of each that is not far behind, in rounds, so that a drifting clock is everyone's. */
static void look_in_rounds(race *c, int64_t rounds) {
    const double begin = now();
    int32_t left = 0;
    for (int32_t i = 0; i < c->count; i++)
        left += may_win(c, &c->rivals[i]);
    if (left < 2)
        return;
    for (int64_t round = 0; round < rounds && (round == 0 || now() - begin < CASE_SECONDS); round++)
        for (int32_t i = 0; i < c->count && !interrupted(); i++) {
            rival *r = &c->rivals[round % 2 ? c->count - 1 - i : i];
            if (!may_win(c, r) || r->seconds > LONG_SECONDS)
                continue;
            look(c, r);
            if (r->call)
                r->samples[r->looks++] = r->seconds;
        }
    for (int32_t i = 0; i < c->count; i++) {
        rival *r = &c->rivals[i];
        qsort(r->samples, (size_t)r->looks, sizeof *r->samples, by_size);
        if (r->looks)
            r->seconds = r->samples[r->looks / 2];
    }
}

/* --- a case --- */

/* Seconds by the speed so far; 0: not known. */
static double expected(const tuned_kernel *kernel, const options *o) {
    const double rate = kernel->rate[o->desc.dtype == ROPE_F32];
    return rate > 0 ? workload_flops(o) / rate : 0;
}

/* Adds a kernel, unless it declines the case or has no room for it. False after a message. */
static bool add_rival(tune_run *run, race *c, tuned_kernel *kernel) {
    const options *o = &c->of->o;
    const int64_t sets = o->quick ? 1 : measure_sets(o, &run->t.info, workload_tensor_bytes(o));
    if (!c->w.device) {
        if (!attention_create_tensors(&c->w, o, run->t.device, sets))
            return false;
        attention_limit_workspace(&c->w, run->t.info.backend);
    }
    const int32_t call = c->w.call_count;
    if (attention_add_kernel(&c->w, kernel->backend, kernel->kernel))
        c->rivals[c->count++] = (rival){.of = kernel, .call = &c->w.calls[call], .iterations = 1};
    else if (c->w.declined)
        leave_out(c->of, kernel, "%s", rope_last_error());
    else if (c->w.attention->workspace_needed)
        leave_out(c->of, kernel, "it needs %zu bytes of workspace; allowed is <= %zu",
                  c->w.attention->workspace_needed, c->w.attention->workspace_most);
    else
        leave_out(c->of, kernel, "the message above says why");
    c->declined += c->w.declined; /* one without room leaves its calls to the others */
    return true;
}

/* Those that may win, or where none of them has room, those that end in time; the workload's calls
 * are theirs. False after a message. */
static bool add_rivals(tune_run *run, race *c) {
    const options *o = &c->of->o;
    tuned_kernel *kernels = run->kernels[o->backward];
    const int32_t count = run->kernel_count[o->backward];
    double least = MOST_SECONDS, after = 0; /* seconds, which those added so far take at most */
    for (int32_t i = 0; i < count; i++) {
        const double seconds = expected(&kernels[i], o);
        least = seconds > 0 && SLOW * seconds < least ? SLOW * seconds : least;
    }
    const double first = least;
    for (; c->count == 0 && after < MOST_SECONDS; after = least, least = MOST_SECONDS)
        for (int32_t i = 0; i < count; i++) {
            const double seconds = expected(&kernels[i], o);
            if (seconds <= least && (after == 0 || seconds > after) &&
                !add_rival(run, c, &kernels[i]))
                return false;
        }
    for (int32_t i = 0; i < count; i++)
        if (expected(&kernels[i], o) > (after > first ? MOST_SECONDS : first))
            leave_out(c->of, &kernels[i], "by its speed so far it takes %s",
                      format_seconds(expected(&kernels[i], o)).text);
    return true;
}

static const rival *fastest_of(const race *c) {
    const rival *best = NULL;
    for (int32_t i = 0; i < c->count; i++) {
        const rival *r = &c->rivals[i];
        if (r->call && (!best || r->seconds < best->seconds * (1 - WORTH)))
            best = r;
    }
    return best;
}

/* What a table says of the call, and its kernel. */
static cJSON *point_of(const rival *r, const char *operation) {
    rope_shape_entry entries[ROPE_SHAPE_MOST];
    char name[80];
    const int32_t count = rope_plan_shape(r->call->plan, r->call->sets, entries);
    cJSON *point = cJSON_CreateObject();
    cJSON_AddStringToObject(point, "operation", operation);
    for (int32_t i = 0; i < count; i++) {
        if (entries[i].text)
            cJSON_AddStringToObject(point, entries[i].name, entries[i].text);
        else
            cJSON_AddNumberToObject(point, entries[i].name, (double)entries[i].value);
    }
    snprintf(name, sizeof name, "%s:%s", r->of->backend, r->of->kernel);
    cJSON_AddStringToObject(point, "kernel", name);
    return point;
}

static void show(const tune_run *run, const bench_case *c, const race *of, const rival *best) {
    printf("%d/%d %s\n   ", (int)(c - run->cases) + 1, run->count, c->settings);
    for (int32_t i = 0; i < of->count; i++) {
        const rival *r = &of->rivals[i];
        if (r->seconds > 0)
            printf(" %s:%s %s%s", r->of->backend, r->of->kernel, format_seconds(r->seconds).text,
                   r == best ? " *" : "");
    }
    puts(best ? "" : " nothing to choose from");
    fflush(stdout);
}

/* The point of a case, unless there is no choice. False after a message or SIGINT. */
static bool tune_case(tune_run *run, const bench_case *c) {
    race *of = calloc(1, sizeof *of);
    const rival *best = NULL;
    if (of)
        of->of = c;
    bool done = of && add_rivals(run, of);
    if (done && of->count && run->kernel_count[c->o.backward] - of->declined > 1) {
        look_first(of);
        look_in_rounds(of, c->o.rounds);
        best = fastest_of(of);
    }
    done = done && !interrupted();
    if (done && best)
        cJSON_AddItemToArray(run->points, point_of(best, operations[c->o.backward]));
    if (done)
        show(run, c, of, best);
    if (of)
        workload_destroy(&of->w);
    free(of);
    return done;
}

/* A kernel of another backend, which may sum in any order: the opened one's have one. */
static bool has_provider(const tune_run *run) {
    for (int32_t i = 0; i < run->kernel_count[BACKWARD]; i++)
        if (strcmp(run->kernels[BACKWARD][i].backend, run->t.info.backend) != 0)
            return true;
    return false;
}

/* The cases that fit the device. */
static bool list_cases(tune_run *run, options *o) {
    const bool gpu = strcmp(run->t.info.backend, "cpu") != 0, provided = has_provider(run);
    const size_t most =
        run->t.info.memory_bytes > 0 ? (size_t)run->t.info.memory_bytes / 8 : SIZE_MAX;
    int32_t kept = 0;
    if (o->rounds == 0)
        o->rounds = o->quick ? 3 : gpu ? 5 : 7;
    o->attends.tuning = "";
    run->cases = pool_alloc(o->pool, SUITE_CASES_MOST, sizeof *run->cases);
    run->count = run->cases ? suite_expand_tuning(o, gpu, run->cases) : -1;
    for (int32_t i = 0; i < run->count; i++) {
        const bench_case *c = &run->cases[i];
        if (workload_tensor_bytes(&c->o) <= most && (!c->o.nondeterministic || provided) &&
            !(o->quick && workload_flops(&c->o) > QUICK_FLOPS))
            run->cases[kept++] = *c;
    }
    run->count = run->count < 0 ? -1 : kept;
    return run->count >= 0;
}

/* --- the table --- */

static bool write_point(FILE *file, const cJSON *point) {
    char *text = cJSON_PrintUnformatted(point);
    const bool done = text && fprintf(file, "%s%s", text, point->next ? ",\n" : "\n") > 0;
    cJSON_free(text);
    return done;
}

/* A point a line. */
static bool write_to(FILE *file, const tune_run *run) {
    cJSON *head = cJSON_CreateObject();
    cJSON_AddStringToObject(head, "backend", run->t.info.backend);
    cJSON_AddStringToObject(head, "device", run->t.info.name);
    cJSON_AddStringToObject(head, "features", run->t.info.features);
    char *text = cJSON_PrintUnformatted(head);
    bool done = text && fprintf(file, "%.*s,\"points\":[\n", (int)strlen(text) - 1, text) > 0;
    for (const cJSON *p = run->points->child; done && p; p = p->next)
        done = write_point(file, p);
    cJSON_free(text);
    cJSON_Delete(head);
    return done && fputs("]}\n", file) >= 0;
}

static bool write_table(const tune_run *run, const options *o) {
    FILE *file = fopen(o->output, "w");
    bool done = file && write_to(file, run);
    if (file && fclose(file) != 0)
        done = false;
    if (!done)
        message("--output is \"%.200s\", which cannot be written", o->output);
    return done;
}

static bool tune_cases(tune_run *run, const options *o) {
    bool done = true;
    run->points = cJSON_CreateArray();
    for (int32_t i = 0; i < run->count && done && !interrupted(); i++)
        done = tune_case(run, &run->cases[i]);
    if (interrupted())
        message("interrupted; --output has what was measured");
    const bool written = (!done && !run->points->child) || write_table(run, o);
    cJSON_Delete(run->points);
    return done && written && !interrupted();
}

static bool tune_device(tune_run *run, options *o) {
    if (!target_open(&run->t, o))
        return false;
    list_kernels(run, o);
    const bool done = list_cases(run, o) && tune_cases(run, o);
    for (int32_t i = 0; i < run->device_count; i++)
        rope_device_close(run->devices[i]);
    return done;
}

int command_tune(options *o) {
    tune_run *run = pool_alloc(o->pool, 1, sizeof *run);
    interrupt_catch();
    if (!o->output) {
        message("--output is not given; allowed is a file, which ROPE_TUNING may then name");
        return EXIT_ENVIRONMENT;
    }
    const bool done = run && tune_device(run, o);
    if (run)
        target_close(&run->t);
    return done ? EXIT_OK : interrupted() ? EXIT_CHECK_FAILED : EXIT_ENVIRONMENT;
}
