/* Times every kernel of attention that a device has on the cases of a suite, and writes which was
 * fastest: a table by which calls choose (docs/attention.md). */
#include "bench/attention/workload.h"
#include "bench/commands/commands.h"
#include "bench/measure/interrupt.h"
#include "bench/measure/measure.h"
#include "bench/measure/suites.h"
#include "bench/output/format.h"
#include "bench/output/message.h"
#include "bench/output/table.h"
#include "bench/workload/target.h"

#include <cjson/cJSON.h>

#include <ropekit/backend.h>

#include <stdlib.h>
#include <string.h>

/* Time of one look at the clock; a quick run leaves out what takes more floating-point operations,
 * and does not fill caches anew. */
#define LOOK_SECONDS 0.01
#define QUICK_FLOPS 1e8
/* Another kernel than the first is taken where it saves as much: less is the noise of a machine. */
#define WORTH 0.02

typedef struct tune_run {
    target t;
    bench_case *cases;
    int32_t count;
    cJSON *points;
    table shown;
} tune_run;

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of looks at a call, or a negative number after a message. */
static double time_call(const workload *w, int64_t rounds) {
    const workload_call *call = &w->calls[0];
    double seconds[1000];
    rope_timing timing = {.struct_size = sizeof timing,
                          .kind = ROPE_TIME_KERNEL,
                          .graph = 1,
                          .iterations = 1,
                          .plan = call->plan,
                          .args = call->sets,
                          .args_count = w->set_count,
                          .workspace = call->workspace};
    for (int64_t i = -2; i < rounds; i++) { /* the first two only say how often to run */
        if (!succeeded(rope_time(w->device, &timing), "time"))
            return -1;
        if (i < 0)
            timing.iterations = timing.seconds > 0 && timing.seconds < LOOK_SECONDS
                                    ? (int64_t)(LOOK_SECONDS / timing.seconds) + 1
                                    : 1;
        else
            seconds[i] = timing.seconds;
    }
    qsort(seconds, (size_t)rounds, sizeof *seconds, by_size);
    return seconds[rounds / 2];
}

/* What a table says of the call, but for its kernel. */
static cJSON *point_of(const workload *w) {
    rope_shape_entry entries[ROPE_SHAPE_MOST];
    const int32_t count = rope_plan_shape(w->calls[0].plan, w->calls[0].sets, entries);
    cJSON *point = cJSON_CreateObject();
    cJSON_AddStringToObject(point, "operation", "attention");
    for (int32_t i = 0; i < count; i++) {
        if (entries[i].text)
            cJSON_AddStringToObject(point, entries[i].name, entries[i].text);
        else
            cJSON_AddNumberToObject(point, entries[i].name, (double)entries[i].value);
    }
    return point;
}

/* One case by one kernel: its point, or NULL where it declines. False after a message. */
static bool time_kernel(const tune_run *run, const bench_case *c, const char *kernel,
                        double *seconds, cJSON **point) {
    options o = c->o;
    workload w = {0};
    o.desc.kernel = kernel;
    *point = NULL;
    if (!attention_accepts(&o))
        return true;
    const int64_t sets = o.quick ? 1 : measure_sets(&o, &run->t.info, workload_tensor_bytes(&o));
    const bool done =
        workload_create(&w, &o, run->t.device, sets) && (*seconds = time_call(&w, o.rounds)) >= 0;
    if (done)
        *point = point_of(&w);
    workload_destroy(&w);
    return done;
}

static bool tune_case(tune_run *run, const bench_case *c) {
    const char *kernel, *best = NULL;
    cJSON *kept = NULL;
    double least = 0;
    for (int32_t i = 0; (kernel = rope_device_kernel(run->t.device, "attention", i)); i++) {
        cJSON *point;
        double seconds;
        if (interrupted() || !time_kernel(run, c, kernel, &seconds, &point)) {
            cJSON_Delete(kept);
            return interrupted();
        }
        if (point && (!best || seconds < least * (1 - WORTH))) {
            cJSON *last = kept;
            kept = point;
            point = last;
            best = kernel;
            least = seconds;
        }
        cJSON_Delete(point);
    }
    if (!best)
        return true;
    char name[80];
    snprintf(name, sizeof name, "%s:%s", run->t.info.backend, best);
    cJSON_AddStringToObject(kept, "kernel", name);
    cJSON_AddItemToArray(run->points, kept);
    table_cell(&run->shown, "%s", c->settings);
    table_cell(&run->shown, "%s", name);
    table_cell(&run->shown, "%s", format_seconds(least).text);
    return true;
}

/* The cases that fit the device. */
static bool list_cases(tune_run *run, options *o) {
    const bool gpu = strcmp(run->t.info.backend, "cpu") != 0;
    const size_t most =
        run->t.info.memory_bytes > 0 ? (size_t)run->t.info.memory_bytes / 8 : SIZE_MAX;
    int32_t kept = 0;
    if (o->rounds == 0)
        o->rounds = o->quick ? 3 : 7;
    if (o->tokens < 0)
        o->tokens = 4096;
    run->cases = pool_alloc(o->pool, SUITE_CASES_MOST, sizeof *run->cases);
    run->count = run->cases ? suite_expand("attention", o, gpu, run->cases) : -1;
    for (int32_t i = 0; i < run->count; i++) {
        const bench_case *c = &run->cases[i];
        if (workload_tensor_bytes(&c->o) <= most &&
            !(o->quick && workload_flops(&c->o) > QUICK_FLOPS))
            run->cases[kept++] = *c;
    }
    run->count = run->count < 0 ? -1 : kept;
    return run->count >= 0;
}

static bool write_table(tune_run *run, const options *o) {
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "backend", run->t.info.backend);
    cJSON_AddStringToObject(document, "device", run->t.info.name);
    cJSON_AddStringToObject(document, "features", run->t.info.features);
    cJSON_AddItemToObject(document, "points", run->points);
    char *text = cJSON_Print(document);
    FILE *file = text ? fopen(o->output, "w") : NULL;
    bool done = file && fputs(text, file) >= 0 && fputc('\n', file) >= 0;
    if (file && fclose(file) != 0)
        done = false;
    if (!done)
        message("--output is \"%.200s\", which cannot be written", o->output);
    cJSON_free(text);
    cJSON_Delete(document);
    return done;
}

int command_tune(options *o) {
    tune_run run = {0};
    bool done = false;
    if (!o->output) {
        message("--output is not given; allowed is a file, which ROPE_TUNING may then name");
        return EXIT_ENVIRONMENT;
    }
    if (target_open(&run.t, o) && list_cases(&run, o)) {
        run.points = cJSON_CreateArray();
        table_begin(&run.shown, "case|fastest|time");
        done = true;
        for (int32_t i = 0; i < run.count && done && !interrupted(); i++)
            done = tune_case(&run, &run.cases[i]);
        table_print(&run.shown, stdout);
        table_end(&run.shown);
        done = done && !interrupted() && write_table(&run, o);
    }
    target_close(&run.t);
    return done ? EXIT_OK : interrupted() ? EXIT_CHECK_FAILED : EXIT_ENVIRONMENT;
}
