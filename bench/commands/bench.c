#include "bench/commands/accuracy.h"
#include "bench/commands/commands.h"
#include "bench/measure/interrupt.h"
#include "bench/measure/resume.h"
#include "bench/measure/suite_table.h"
#include "bench/output/format.h"
#include "bench/output/message.h"
#include "bench/support/dtype.h"

#include <string.h>

/* Tensors above this are left out of a quick run. */
#define QUICK_BYTES ((size_t)64 << 20)
/* What more floating-point operations take is left out of a quick run on a CPU. */
#define QUICK_FLOPS 1e9
/* Weight of a case in the progress bar: set-up and looks, and MiB of tensors. */
#define CASE_WEIGHT 16
#define WEIGHT_BYTES ((size_t)1 << 20)

/* What the cases of a run share. */
typedef struct bench_run {
    target t;
    bench_case *cases;
    int32_t count;
    record_list list;
    suite_table table;
    progress bar;
    FILE *file;
    int64_t checked, refused; /* outputs */
} bench_run;

/* Largest tensors that are measured: a quarter of the memory holds what is read and written. */
static size_t largest_bytes(const options *o, const rope_device_info *info) {
    size_t most = info->memory_bytes > 0 ? (size_t)info->memory_bytes / 8 : SIZE_MAX;
    return o->quick && o->suite && most > QUICK_BYTES ? QUICK_BYTES : most;
}

static int64_t weight(const bench_case *c) {
    return CASE_WEIGHT + (int64_t)(workload_tensor_bytes(&c->o) / WEIGHT_BYTES);
}

static void state_suites(bench_run *run, int32_t first, bool complete) {
    for (const bench_case *c = run->cases + first; c < run->cases + run->count; c++)
        record_suite(&run->list, c->suite ? c->suite : "", complete);
}

/* Drops the cases that are done or too large. */
static void select_cases(bench_run *run, const options *o) {
    const bool in_time = o->quick && o->suite && strcmp(run->t.info.backend, "cpu") == 0;
    size_t most = largest_bytes(o, &run->t.info);
    int32_t kept = 0, large = 0, slow = 0;
    for (int32_t i = 0; i < run->count; i++) {
        const bench_case *c = &run->cases[i];
        if (workload_tensor_bytes(&c->o) > most)
            large++;
        else if (in_time && workload_flops(&c->o) > QUICK_FLOPS)
            slow++;
        else if (!c->suite || !resume_holds(&run->list, c->suite, "case", c->settings))
            run->cases[kept++] = *c;
    }
    if (large)
        message("left out %s whose tensors exceed %s", format_amount(large, "case").text,
                format_bytes((double)most).text);
    if (slow)
        message("left out %s of more than %.0g floating-point operations",
                format_amount(slow, "case").text, QUICK_FLOPS);
    run->count = kept;
}

/* Checks the output, then times; what is wrong is not timed. */
static bool work(bench_run *run, const bench_case *c, workload *w) {
    check_result checked;
    measurement m;
    progress silent = {.total = 1};
    const char *kernel = w->kernel;
    if (!check_call(w, &c->o, false, &silent, &checked))
        return false;
    run->checked += checked.elements;
    run->refused += checked.refused;
    if (checked.refused) {
        cJSON *record = record_case(&run->list, c);
        cJSON_AddStringToObject(record, "kernel", kernel);
        record_check(record, &checked);
        message("\"%s\": %lld of %lld outputs are outside their bound; it is not timed",
                c->settings, (long long)checked.refused, (long long)checked.elements);
        return record_save(&run->list, &c->o);
    }
    run->bar.weight = weight(c);
    if (!measure_run(w, c->o.rounds, &run->bar, c->settings, &m))
        return false;
    if (interrupted() && c->suite) /* fewer rounds than --resume would take */
        return true;
    suite_table_add(&run->table, c, kernel, w, &m);
    record_measurement(&run->list, c, kernel, w, &m, &checked);
    return record_save(&run->list, &c->o);
}

static bool run_case(bench_run *run, const bench_case *c) {
    workload w;
    int64_t sets = measure_sets(&c->o, &run->t.info, workload_tensor_bytes(&c->o));
    bool done = workload_create(&w, &c->o, run->t.device, sets) && work(run, c, &w);
    workload_destroy(&w);
    if (w.declined && c->suite)
        message("left out \"%s\"", c->settings);
    return done || (w.declined && c->suite);
}

/* Prints the table so far where the next case belongs to another suite; false where it cannot. */
static bool turn_page(bench_run *run, const bench_case *next) {
    if (!next->suite || strcmp(run->table.suite, next->suite) == 0)
        return true;
    suite_table_end(&run->table, run->file);
    suite_table_begin(&run->table, next);
    return text_flush(run->file);
}

static bool measure_cases(bench_run *run) {
    int64_t steps = 0;
    int32_t ended = 0;
    bool done = true;
    state_suites(run, 0, false);
    for (int32_t i = 0; i < run->count; i++)
        steps += weight(&run->cases[i]) * measure_steps(run->cases[i].o.rounds);
    progress_begin(&run->bar, steps);
    suite_table_begin(&run->table, run->count ? run->cases : NULL);
    for (int32_t i = 0; i < run->count && done && !interrupted(); i++) {
        done = turn_page(run, &run->cases[i]) && run_case(run, &run->cases[i]);
        ended += done && !interrupted();
    }
    progress_end(&run->bar);
    state_suites(run, 0, true);
    state_suites(run, ended, false);
    suite_table_end(&run->table, run->file);
    return done;
}

static const int32_t error_dtypes[] = {ROPE_F32, ROPE_BF16};

static bool holds_errors(const bench_run *run, int i) {
    return resume_holds(&run->list, SUITE_ACCURACY, "dtype", dtype_name(error_dtypes[i]));
}

static void state_errors(bench_run *run) {
    record_suite(&run->list, SUITE_ACCURACY, holds_errors(run, 0) && holds_errors(run, 1));
}

static bool measure_errors(bench_run *run, const options *o) {
    bool done = true;
    for (int i = 0; i < 2 && done && !interrupted(); i++) {
        options reduced = *o;
        if (holds_errors(run, i))
            continue;
        reduced.desc.dtype = error_dtypes[i];
        reduced.tokens = -1;
        fprintf(run->file, "\n%s\n", SUITE_ACCURACY);
        done = accuracy_measure(&reduced, &run->t, &run->list, run->file);
    }
    state_errors(run);
    return done && record_save(&run->list, o);
}

static bool is_wanted(const options *o, const char *suite) {
    return o->suite && (strcmp(o->suite, suite) == 0 || strcmp(o->suite, "all") == 0);
}

/* The cases to run: those of the suite, or the options' own. */
static bool list_cases(bench_run *run, options *o) {
    if (o->suite && o->config) {
        message(
            "--config is \"%.60s\"; allowed is none with --suite, whose cases state their shapes",
            o->config);
        return false;
    }
    if (o->suite && (o->append || o->attention)) {
        message("--%s is given; allowed is none with --suite, whose cases state it",
                o->append ? "append" : "attention");
        return false;
    }
    if (o->tokens < 0)
        o->tokens = 4096;
    if (o->rounds == 0)
        o->rounds = o->quick ? 5 : 15;
    run->cases = pool_alloc(o->pool, SUITE_CASES_MOST, sizeof *run->cases);
    if (!run->cases)
        return false;
    bool gpu = strcmp(run->t.info.backend, "cpu") != 0;
    run->cases[0] = (bench_case){NULL, "", options_line(o, ""), *o};
    run->count = o->suite ? suite_expand(o->suite, o, gpu, run->cases) : 1;
    return run->count >= 0;
}

static void print_cases(bench_run *run) {
    for (int32_t i = 0; i < run->count; i++) {
        record_case(&run->list, &run->cases[i]);
        fprintf(run->file, "%s %s\n", run->cases[i].suite ? run->cases[i].suite : "as given",
                run->cases[i].settings);
    }
}

static bool run_cases(bench_run *run, const options *o) {
    fprintf(run->file, "%s, %s, median of %s\n", run->t.info.name,
            format_amount(target_threads(), "thread").text, format_amount(o->rounds, "round").text);
    if (o->dtype_is_assumed)
        fprintf(run->file, "%s\n", options_dtype(o));
    if (!text_flush(run->file))
        return false;
    interrupt_catch();
    bool errors = is_wanted(o, SUITE_ACCURACY);
    if (errors)
        state_errors(run);
    bool done = measure_cases(run);
    if (done && errors && !interrupted())
        done = measure_errors(run, o);
    if (run->checked)
        fprintf(run->file, "\nchecked %lld outputs of the timed cases, %lld outside their bound\n",
                (long long)run->checked, (long long)run->refused);
    if (interrupted())
        message("interrupted; what was measured is kept, --resume measures the rest");
    else if (done && !run->list.records->child) {
        message("nothing was measured; allowed is a suite with a case for this device and memory");
        return false;
    }
    return done || interrupted();
}

static int bench(bench_run *run, options *o) {
    if (!list_cases(run, o))
        return EXIT_ENVIRONMENT;
    record_begin(&run->list, "bench", o, &run->t.info);
    record_rounds(&run->list, o->rounds);
    run->file = text_open(o->json);
    bool done = !o->resume || resume_read(&run->list, o);
    if (done) {
        if (!o->list)
            state_suites(run, 0, true);
        select_cases(run, o);
        if (o->list)
            print_cases(run);
        else
            done = run_cases(run, o);
    }
    text_close(run->file);
    if (!done)
        cJSON_Delete(run->list.document);
    if (!done || !record_end(&run->list, o))
        return EXIT_ENVIRONMENT;
    return run->refused || interrupted() ? EXIT_CHECK_FAILED : EXIT_OK;
}

int command_bench(options *o) {
    bench_run run = {0};
    int status = target_open(&run.t, o) ? bench(&run, o) : EXIT_ENVIRONMENT;
    target_close(&run.t);
    return status;
}
