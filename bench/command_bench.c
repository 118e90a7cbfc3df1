#include "bench/commands.h"
#include "bench/format.h"
#include "bench/interrupt.h"
#include "bench/measure.h"
#include "bench/message.h"
#include "bench/record.h"
#include "bench/suites.h"
#include "bench/table.h"
#include "bench/target.h"

#include <string.h>

#define HEADINGS "case|kernel|cache|bytes|time|GB/s|floor|GB/s|of floor|quartiles|A/A|apply"
/* Tensors above this are left out of a quick run. */
#define QUICK_BYTES ((size_t)96 << 20)

/* Kernels slower than this drown what rope_apply adds. */
#define OVERHEAD_SEEN 20e-6

/* What the cases of a run share. */
typedef struct bench_run {
    target t;
    bench_case *cases;
    int32_t count;
    record_list list;
    table table;
    progress bar;
} bench_run;

/* Why a case cannot be run here, or NULL. */
static const char *reason_to_skip(const options *o, const rope_device_info *info) {
    size_t bytes = workload_tensor_bytes(o);
    if (o->quick && o->suite && bytes > QUICK_BYTES)
        return "large, and --quick is given";
    if (info->memory_bytes > 0 && bytes > (size_t)info->memory_bytes / 5)
        return "more than a fifth of the device's memory";
    return NULL;
}

/* A short name of a case for the table. */
static void write_label(const bench_case *c, char *label, size_t size) {
    const options *o = &c->o;
    const char *first = strstr(c->settings, "--cache=");
    const char *extra = first ? strchr(first, ' ') : NULL;
    snprintf(label, size, "%s T %s %lld/%lld D %d%s%s%.44s", dtype_name(o->desc.dtype),
             format_count(o->tokens).text, (long long)o->q_heads, (long long)o->k_heads,
             o->desc.head_dim, o->batch > 1 ? " batched" : "", o->in_place ? " in place" : "",
             o->suite && extra ? extra : "");
}

static void add_row(bench_run *run, const char *label, const char *kernel, const options *o,
                    const workload *w, const measurement *m) {
    double bytes = 2.0 * (double)w->floor_bytes;
    table *t = &run->table;
    table_cell(t, "%s", label);
    table_cell(t, "%s", kernel);
    table_cell(t, "%s", o->cache == CACHE_COLD ? "cold" : "warm");
    table_cell(t, "%s", format_bytes(bytes).text);
    table_cell(t, "%s", format_seconds(m->kernel.median).text);
    table_cell(t, "%.1f", 1e-9 * bytes / m->kernel.median);
    table_cell(t, "%s", m->floor_kernel);
    table_cell(t, "%.1f", 1e-9 * bytes / m->floor.median);
    table_cell(t, "%.3f", m->kernel_ratio.median);
    table_cell(t, "%.3f..%.3f", m->kernel_ratio.low, m->kernel_ratio.high);
    table_cell(t, "%.3f", m->self_ratio.median);
    if (m->kernel.median < OVERHEAD_SEEN)
        table_cell(t, "%+.0f ns", 1e9 * (m->apply.median - m->kernel.median));
    else
        table_cell(t, "-");
}

static bool run_case(bench_run *run, bench_case *c) {
    char label[128];
    workload w;
    rope_plan *plan = NULL;
    measurement m;
    options *o = &c->o;
    write_label(c, label, sizeof label);
    const char *reason = reason_to_skip(o, &run->t.info);
    if (reason) {
        message("left out \"%s\": %s", label, reason);
        return true;
    }
    if (!target_plan(o, &plan))
        return false;
    int64_t sets = measure_sets(o, &run->t.info, workload_tensor_bytes(o));
    bool done = workload_create(&w, o, run->t.device, sets) &&
                measure_run(&w, plan, o->rounds, &run->bar, label, &m);
    if (done) {
        add_row(run, label, rope_plan_kernel(plan), o, &w, &m);
        record_measurement(&run->list, c->settings, rope_plan_kernel(plan), o, &w, &m);
    }
    workload_destroy(&w);
    rope_plan_destroy(plan);
    return done;
}

/* The cases to run: those of the suite, or the options' own. */
static bool list_cases(bench_run *run, options *o) {
    if (o->suite && o->config) {
        message(
            "--config is \"%.60s\"; allowed is none with --suite, whose cases state their shapes",
            o->config);
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
    run->cases[0] = (bench_case){o->given, *o};
    run->count = o->suite ? suite_expand(o->suite, o, gpu, run->cases) : 1;
    return run->count > 0;
}

static int run_cases(bench_run *run, options *o) {
    if (!list_cases(run, o))
        return EXIT_ENVIRONMENT;
    bool done = true;
    interrupt_catch();
    record_begin(&run->list, "bench", o, &run->t.info);
    table_begin(&run->table, HEADINGS);
    progress_begin(&run->bar, run->count * measure_steps(o->rounds));
    for (int32_t i = 0; i < run->count && done && !interrupted(); i++)
        done = run_case(run, &run->cases[i]);
    progress_end(&run->bar);
    FILE *file = text_open(o->json);
    fprintf(file, "%s, %d threads, median of %lld rounds\n", run->t.info.name, target_threads(),
            (long long)o->rounds);
    table_print(&run->table, file);
    text_close(file);
    table_end(&run->table);
    if (interrupted())
        message("interrupted; what was measured is kept");
    return record_end(&run->list, o) && (done || interrupted()) ? EXIT_OK : EXIT_ENVIRONMENT;
}

int command_bench(options *o) {
    bench_run run = {0};
    int status = target_open(&run.t, o) ? run_cases(&run, o) : EXIT_ENVIRONMENT;
    target_close(&run.t);
    return status;
}
