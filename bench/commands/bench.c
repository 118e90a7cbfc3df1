#include "bench/commands/bench.h"
#include "bench/check/check.h"
#include "bench/commands/commands.h"
#include "bench/measure/record.h"
#include "bench/measure/suite_table.h"
#include "bench/measure/suites.h"
#include "bench/operation/operation.h"
#include "bench/options/case_name.h"
#include "bench/output/format.h"
#include "bench/output/message.h"

#include <string.h>

/* Tensors above this are left out of a quick run. */
#define QUICK_BYTES ((size_t)64 << 20)
/* What more floating-point operations take is left out of a quick run on a CPU. */
#define QUICK_FLOPS 1e9

enum { ROUNDS = 15, QUICK_ROUNDS = 5, TOKENS = 4096 };

/* What the cases of a run share. */
typedef struct bench_run {
    const target *t;
    options *cases;
    int32_t count;
    record_list list;
    suite_table table;
    FILE *file;
    int64_t checked, refused; /* outputs */
} bench_run;

/* --- cases --- */

/* Drops what is too large: a quarter of the memory holds what is read and written. */
static void drop_large(bench_run *run, const options *o) {
    const bool quick = o->quick && o->suite, cpu = strcmp(run->t->info.backend, "cpu") == 0;
    size_t most = run->t->info.memory_bytes > 0 ? (size_t)run->t->info.memory_bytes / 8 : SIZE_MAX;
    int32_t kept = 0, large = 0, slow = 0;
    if (quick && most > QUICK_BYTES)
        most = QUICK_BYTES;
    for (int32_t i = 0; i < run->count; i++) {
        const options *c = &run->cases[i];
        if (shape_tensor_bytes(c) > most)
            large++;
        else if (quick && cpu && shape_flops(c) > QUICK_FLOPS)
            slow++;
        else
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

static void print_cases(bench_run *run) {
    for (int32_t i = 0; i < run->count; i++) {
        const options *c = &run->cases[i];
        record_case(&run->list, c);
        fprintf(run->file, "%s %s\n", c->suite_of ? c->suite_of : "as given", case_name(c));
    }
}

/* --- measurements --- */

/* Checks the output, then times; what is wrong is not timed. */
static bool work(bench_run *run, const options *c, workload *w) {
    check_result checked;
    measurement m;
    if (!check_call(w, false, &checked))
        return false;
    run->checked += checked.elements;
    run->refused += checked.refused;
    if (checked.refused) {
        cJSON *record = record_case(&run->list, c);
        cJSON_AddStringToObject(record, "kernel", w->kernel);
        record_check(record, &checked);
        message("\"%s\": %lld of %lld outputs are outside their bound; it is not timed",
                case_name(c), (long long)checked.refused, (long long)checked.elements);
        return true;
    }
    if (!measure_run(w, c->rounds, &m))
        return false;
    suite_table_add(&run->table, c, w, &m);
    record_measurement(&run->list, c, w, &m, &checked);
    return true;
}

/* A case of a suite that every kernel declines is left out. */
static bool run_case(bench_run *run, const options *c) {
    workload w;
    const int64_t sets = measure_sets(c, &run->t->info, shape_tensor_bytes(c));
    bool done = workload_create(&w, c, run->t->device, sets) && work(run, c, &w);
    workload_destroy(&w);
    if (!done && w.declined && c->suite_of) {
        message("left out \"%s\"", case_name(c));
        done = true;
    }
    return done && record_save(&run->list, c);
}

/* Prints the table so far where the next case belongs to another suite; false where it cannot. */
static bool turn_page(bench_run *run, const options *next) {
    if (!next->suite_of || strcmp(run->table.suite, next->suite_of) == 0)
        return true;
    suite_table_end(&run->table, run->file);
    suite_table_begin(&run->table, next->suite_of);
    return text_flush(run->file);
}

static bool run_cases(bench_run *run, const options *o) {
    bool done = true;
    fprintf(run->file, "%s, %s, median of %s\n", run->t->info.name,
            format_amount(target_threads(), "thread").text, format_amount(o->rounds, "round").text);
    if (o->dtype_is_assumed)
        fprintf(run->file, "%s\n", options_dtype(o));
    suite_table_begin(&run->table, run->count ? run->cases[0].suite_of : NULL);
    for (int32_t i = 0; i < run->count && done; i++) {
        message_progress(i + 1, run->count, case_name(&run->cases[i]));
        done = turn_page(run, &run->cases[i]) && run_case(run, &run->cases[i]);
    }
    message_progress(0, 0, NULL);
    suite_table_end(&run->table, run->file);
    if (run->checked)
        fprintf(run->file, "\nchecked %lld outputs of the timed cases, %lld outside their bound\n",
                (long long)run->checked, (long long)run->refused);
    if (done && !run->list.records->child) {
        message("nothing was measured; allowed is a suite with a case for this device and memory");
        return false;
    }
    return done;
}

int bench_cases(const char *command, const options *o, const target *t, options *cases,
                int32_t count) {
    bench_run run = {.t = t, .cases = cases, .count = count};
    bool done = true;
    record_begin(&run.list, command, o, &t->info);
    run.file = text_open(o->json);
    drop_large(&run, o);
    if (o->list)
        print_cases(&run);
    else
        done = run_cases(&run, o);
    text_close(run.file);
    if (!record_end(&run.list, o, done))
        return EXIT_ENVIRONMENT;
    return run.refused ? EXIT_CHECK_FAILED : EXIT_OK;
}

static int32_t refuse_beside_suite(const char *option, const char *value) {
    message("--%s is %.60s; allowed is none with --suite, whose cases state it", option, value);
    return -1;
}

/* The cases to run: those of the suite, or the options' own. Their number, or -1 after a message.
 */
static int32_t list_cases(options *o, const target *t, options *cases) {
    if (o->suite && o->config)
        return refuse_beside_suite("config", o->config);
    if (o->suite && (o->append || o->attention))
        return refuse_beside_suite(o->append ? "append" : "attention", "given");
    if (o->tokens < 0)
        o->tokens = TOKENS;
    if (o->rounds == 0)
        o->rounds = o->quick ? QUICK_ROUNDS : ROUNDS;
    cases[0] = *o;
    return o->suite ? suite_expand(o->suite, o, strcmp(t->info.backend, "cpu") != 0, cases) : 1;
}

int command_bench(options *o) {
    target t = {0};
    options *cases = pool_alloc(o->pool, SUITE_CASES_MOST, sizeof *cases);
    int32_t count = cases && target_open(&t, o) ? list_cases(o, &t, cases) : -1;
    int status = count < 0 ? EXIT_ENVIRONMENT : bench_cases("bench", o, &t, cases, count);
    target_close(&t);
    return status;
}
