/* Times the kernels of attention and of its backward that a device has, those of every backend that
 * has it, and writes which was fastest: a table by which calls choose (docs/attention.md). */
#include "bench/commands/commands.h"
#include "bench/measure/measure.h"
#include "bench/measure/suites.h"
#include "bench/operation/operation.h"
#include "bench/options/case_name.h"
#include "bench/output/format.h"
#include "bench/output/message.h"
#include "bench/workload/target.h"

#include <cjson/cJSON.h>

#include <ropekit/backend.h>

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Time of one look at the clock, and of a case after which it has no further round. */
#define LOOK_SECONDS 0.005
#define CASE_SECONDS 1.0
/* A run as long is looked at once. */
#define LONG_SECONDS 0.25
/* A kernel is not started where by its speed so far it would take longer, or as many times as long
 * as another. */
#define MOST_SECONDS 2.0
#define SLOW 20
/* As many times as long as the fastest by one look: there are no more. */
#define BEHIND 1.3
/* Another kernel than the first is taken where it saves as much: less is the noise of a machine. */
#define WORTH 0.01
/* A quick run leaves out what takes more floating-point operations, and does not fill caches anew.
 */
#define QUICK_FLOPS 6e7

enum { KERNELS_MOST = 8, DEVICES_MOST = 4 };
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
    tuned_kernel kernels[2][KERNELS_MOST]; /* by operation */
    int32_t kernel_count[2];
    options *cases;
    int32_t count;
    cJSON *points;
} tune_run;

/* A kernel at a case. */
typedef struct rival {
    tuned_kernel *of;
    const workload_call *call; /* NULL: left out */
    int64_t iterations, looks;
    double seconds; /* of one run, by the last look; then their median */
    double samples[OPTIONS_ROUNDS_MOST];
} rival;

typedef struct race {
    const options *o;
    workload w;
    rival rivals[KERNELS_MOST];
    int32_t count, declined;
    double least; /* seconds of the fastest */
} race;

/* --- kernels --- */

static void add_kernels(tune_run *run, rope_device *device, const char *backend) {
    for (int d = 0; d < 2; d++) {
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

/* A kernel of another backend, which may sum in any order: the opened one's have one. */
static bool has_provider(const tune_run *run) {
    for (int32_t i = 0; i < run->kernel_count[1]; i++)
        if (strcmp(run->kernels[1][i].backend, run->t.info.backend) != 0)
            return true;
    return false;
}

/* --- rivals --- */

__attribute__((format(printf, 3, 4))) static void leave_out(race *c, rival *r, const char *format,
                                                            ...) {
    char reason[400];
    va_list list;
    va_start(list, format);
    vsnprintf(reason, sizeof reason, format, list);
    va_end(list);
    message("%s:%s is left out of %s: %s", r->of->backend, r->of->kernel, case_name(c->o), reason);
    r->call = NULL;
    r->seconds = 0;
}

/* Adds a kernel, unless it declines the case or has no room for it. */
static void add_rival(race *c, tuned_kernel *kernel) {
    rival *r = &c->rivals[c->count++];
    *r = (rival){.of = kernel, .call = &c->w.calls[c->w.call_count], .iterations = 1};
    if (attention_add_kernel(&c->w, kernel->backend, kernel->kernel))
        return;
    if (c->w.declined)
        leave_out(c, r, "%s", rope_last_error());
    else if (c->w.workspace_needed)
        leave_out(c, r, "it needs %zu bytes of workspace; allowed is <= %zu", c->w.workspace_needed,
                  c->w.workspace_most);
    else
        leave_out(c, r, "the message above says why");
    c->declined += c->w.declined; /* one without room leaves its calls to the others */
}

/* Seconds by the speed so far; 0: not known. */
static double expected(const race *c, const rival *r) {
    const double rate = r->of->rate[c->o->desc.dtype == ROPE_F32];
    return r->call && rate > 0 ? c->w.flops / rate : 0;
}

static void leave_out_slow(race *c) {
    double most = MOST_SECONDS;
    for (int32_t i = 0; i < c->count; i++) {
        const double seconds = expected(c, &c->rivals[i]);
        most = seconds > 0 && SLOW * seconds < most ? SLOW * seconds : most;
    }
    for (int32_t i = 0; i < c->count; i++) {
        const double seconds = expected(c, &c->rivals[i]);
        if (seconds > most)
            leave_out(c, &c->rivals[i], "by its speed so far it takes %s",
                      format_seconds(seconds).text);
    }
}

/* --- timing --- */

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
    if (rope_time(r->of->device, &timing) != ROPE_OK) {
        leave_out(c, r, "%s", rope_last_error());
        return;
    }
    double *rate = &r->of->rate[c->o->desc.dtype == ROPE_F32];
    r->seconds = timing.seconds;
    *rate = c->w.flops > *rate * r->seconds ? c->w.flops / r->seconds : *rate;
    c->least = c->least == 0 || r->seconds < c->least ? r->seconds : c->least;
}

/* Runs that make a look long enough and visit all sets, unless that takes much longer. */
static int64_t iterations_for(const race *c, double seconds) {
    const int64_t sets = c->w.set_count,
                  needed = seconds > 0 ? (int64_t)(LOOK_SECONDS / seconds) + 1 : sets;
    return needed < sets && seconds * (double)sets < 4 * LOOK_SECONDS ? sets : needed;
}

/* The first run of each, by which it is left out or its next look is as long as the others'. */
static void look_first(race *c) {
    for (rival *r = c->rivals; r < c->rivals + c->count; r++)
        if (r->call)
            look(c, r);
    const double least = c->least;
    c->least = 0;
    for (rival *r = c->rivals; r < c->rivals + c->count; r++) {
        if (r->call && r->seconds > SLOW * least)
            leave_out(c, r, "it takes %s, the fastest %s", format_seconds(r->seconds).text,
                      format_seconds(least).text);
        r->iterations = r->call ? iterations_for(c, r->seconds) : 0;
        if (r->call && r->seconds <= LONG_SECONDS)
            look(c, r);
        else if (r->call)
            c->least = c->least == 0 || r->seconds < c->least ? r->seconds : c->least;
        r->samples[0] = r->seconds;
        r->looks = 1;
    }
}

/* The median of each that is not far behind, in rounds, so that a drifting clock is everyone's. */
static void look_in_rounds(race *c) {
    const double begin = measure_now(), most = BEHIND * c->least;
    for (int64_t n = 1; n <= c->o->rounds && (n == 1 || measure_now() - begin < CASE_SECONDS); n++)
        for (int32_t i = 0; i < c->count; i++) {
            rival *r = &c->rivals[n % 2 ? i : c->count - 1 - i];
            if (!r->call || r->samples[0] > most || r->samples[0] > LONG_SECONDS)
                continue;
            look(c, r);
            if (r->call && r->looks < OPTIONS_ROUNDS_MOST)
                r->samples[r->looks++] = r->seconds;
        }
    for (rival *r = c->rivals; r < c->rivals + c->count; r++)
        if (r->call)
            r->seconds = measure_summary(r->samples, r->looks).median;
}

static const rival *fastest_of(const race *c) {
    const rival *best = NULL;
    for (const rival *r = c->rivals; r < c->rivals + c->count; r++)
        if (r->call && (!best || r->seconds < best->seconds * (1 - WORTH)))
            best = r;
    return best;
}

/* --- the table --- */

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

/* A point a line. */
static bool write_points(FILE *file, const tune_run *run) {
    cJSON *head = cJSON_CreateObject();
    cJSON_AddStringToObject(head, "backend", run->t.info.backend);
    cJSON_AddStringToObject(head, "device", run->t.info.name);
    cJSON_AddStringToObject(head, "features", run->t.info.features);
    char *text = cJSON_PrintUnformatted(head);
    bool done = text && fprintf(file, "%.*s,\"points\":[\n", (int)strlen(text) - 1, text) > 0;
    cJSON_free(text);
    cJSON_Delete(head);
    for (const cJSON *p = run->points->child; done && p; p = p->next) {
        text = cJSON_PrintUnformatted(p);
        done = text && fprintf(file, "%s%s", text, p->next ? ",\n" : "\n") > 0;
        cJSON_free(text);
    }
    return done && fputs("]}\n", file) >= 0;
}

/* Replaces --output, so that an interrupted run leaves what it measured. */
static bool write_table(const tune_run *run, const options *o) {
    char part[4096];
    snprintf(part, sizeof part, "%s.part", o->output);
    FILE *file = fopen(part, "w");
    bool done = file && write_points(file, run);
    done = file && fclose(file) == 0 && done && rename(part, o->output) == 0;
    if (!done)
        message("--output is \"%.200s\", which cannot be written", o->output);
    return done;
}

/* --- cases --- */

static void show(const race *c, const rival *best, int32_t number, int32_t count) {
    printf("%d/%d %s\n   ", number, count, case_name(c->o));
    for (const rival *r = c->rivals; r < c->rivals + c->count; r++)
        if (r->seconds > 0)
            printf(" %s:%s %s%s", r->of->backend, r->of->kernel, format_seconds(r->seconds).text,
                   r == best ? " *" : "");
    puts(best ? "" : " nothing to choose from");
    fflush(stdout);
}

/* The point of a case, unless there is no choice. False after a message. */
static bool tune_case(tune_run *run, race *c) {
    const int64_t sets =
        c->o->quick ? 1 : measure_sets(c->o, &run->t.info, shape_tensor_bytes(c->o));
    const int operation = c->o->backward;
    const rival *best = NULL;
    if (!attention_create_tensors(&c->w, c->o, run->t.device, sets))
        return false;
    attention_limit_workspace(&c->w, run->t.info.backend);
    for (int32_t i = 0; i < run->kernel_count[operation]; i++)
        add_rival(c, &run->kernels[operation][i]);
    leave_out_slow(c);
    if (c->count - c->declined > 1) {
        look_first(c);
        look_in_rounds(c);
        best = fastest_of(c);
    }
    if (best)
        cJSON_AddItemToArray(run->points, point_of(best, operations[operation]));
    show(c, best, (int32_t)(c->o - run->cases) + 1, run->count);
    return true;
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
    run->count = run->cases ? suite_expand(SUITE_TUNING, o, gpu, run->cases) : 0;
    for (int32_t i = 0; i < run->count; i++) {
        const options *c = &run->cases[i];
        if (shape_tensor_bytes(c) <= most && (!c->nondeterministic || provided) &&
            !(o->quick && shape_flops(c) > QUICK_FLOPS))
            run->cases[kept++] = *c;
    }
    run->count = kept;
    return kept > 0;
}

static bool tune_device(tune_run *run, options *o) {
    race *c = pool_alloc(o->pool, 1, sizeof *c);
    bool done = c && target_open(&run->t, o);
    if (done)
        list_kernels(run, o);
    done = done && list_cases(run, o);
    run->points = cJSON_CreateArray();
    for (int32_t i = 0; i < run->count && done; i++) {
        *c = (race){.o = &run->cases[i]};
        done = tune_case(run, c) && write_table(run, o);
        workload_destroy(&c->w);
    }
    cJSON_Delete(run->points);
    for (int32_t i = 0; i < run->device_count; i++)
        rope_device_close(run->devices[i]);
    target_close(&run->t);
    return done;
}

int command_tune(options *o) {
    tune_run *run = pool_alloc(o->pool, 1, sizeof *run);
    if (!o->output) {
        message("--output is not given; allowed is a file, which ROPE_TUNING may then name");
        return EXIT_ENVIRONMENT;
    }
    return run && tune_device(run, o) ? EXIT_OK : EXIT_ENVIRONMENT;
}
