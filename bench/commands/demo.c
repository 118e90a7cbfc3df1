#define _GNU_SOURCE
#include "bench/commands/commands.h"
#include "bench/commands/demo_attention.h"
#include "bench/measure/measure.h"
#include "bench/measure/record.h"
#include "bench/operation/check.h"
#include "bench/output/format.h"
#include "bench/output/message.h"
#include "bench/output/table.h"
#include "bench/workload/target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 15, QUICK_ROUNDS = 3, TOKENS = 4096, QUICK_TOKENS = 512 };

/* One step of the model. */
typedef struct demo_step {
    const char *name;
    options o;
    char kernel[WORKLOAD_KERNELS];
    measurement m;
    check_result checked;
    double bytes;
} demo_step;

static int64_t rounds_of(const options *o) {
    return o->quick ? QUICK_ROUNDS : ROUNDS;
}

/* Options of ropekit bench that repeat a step. */
static const char *step_options(const demo_step *s) {
    const options *o = &s->o;
    const char *given = options_line(o, "--config= --tokens= --quick");
    const char *config = options_quoted(o->pool, o->config);
    char *text = NULL;
    int size =
        given && config
            ? asprintf(&text,
                       "--config=%s --tokens=%lld --position-offset=%lld --cache=%s --rounds=%lld"
                       "%s%s%s%s",
                       config, (long long)o->tokens, (long long)o->position_offset,
                       o->cache == CACHE_COLD ? "cold" : "warm", (long long)rounds_of(o),
                       o->append ? " --kv-cache=slots" : "", o->in_place ? " --in-place" : "",
                       *given ? " " : "", given)
            : -1;
    return pool_keep(o->pool, size < 0 ? NULL : text, free);
}

/* Rotates once and compares, then times. */
static bool work(demo_step *s, workload *w, progress *bar) {
    s->bytes = 2.0 * (double)w->floor_bytes;
    return check_call(w, &s->o, false, bar, &s->checked) &&
           measure_run(w, rounds_of(&s->o), bar, s->name, &s->m);
}

static bool run_step(demo_step *s, const target *t, progress *bar, record_list *list) {
    workload w;
    const char *repeats = step_options(s);
    if (!repeats)
        return false;
    int64_t sets = measure_sets(&s->o, &t->info, workload_tensor_bytes(&s->o));
    bool done = workload_create(&w, &s->o, t->device, sets < 4 ? sets : 4) && work(s, &w, bar);
    if (done) {
        snprintf(s->kernel, sizeof s->kernel, "%s", w.kernel);
        bench_case c = {NULL, s->name, repeats, s->o};
        record_measurement(list, &c, s->kernel, &w, &s->m, &s->checked);
        record_check(
            record_add(list, s->name, options_command(&s->o, "bench", repeats, ""), s->kernel),
            &s->checked);
    }
    workload_destroy(&w);
    return done;
}

static void print_heading(const options *o, const target *t, FILE *file) {
    const int32_t q_dim = o->desc.head_dim, k_dim = o->desc.k_head_dim ? o->desc.k_head_dim : q_dim;
    fprintf(file, "%s: %s, %s", o->config, options_dtype(o),
            format_amount(o->q_heads, "query head").text);
    if (k_dim != q_dim)
        fprintf(file, " of %d", q_dim);
    fprintf(file, " and %s of %d\n", format_amount(o->k_heads, "key head").text, k_dim);
    options_describe(o, file);
    if (o->quick)
        fputs("quick: fewer tokens and rounds, not for comparison\n", file);
    fprintf(file, "on %s, %s, ropekit %s\n\n", t->info.name,
            format_amount(target_threads(), "thread").text, rope_version());
}

/* What one call takes, or a call for each step of it. */
static void add_append(table *t, const demo_step *s, bool apart) {
    const summary *seconds = apart ? &s->m.steps_apply : &s->m.apply;
    const summary *ratio = apart ? &s->m.steps_apply_ratio : &s->m.apply_ratio;
    table_cell(t, "%s, %s", s->name, apart ? "a call for each step" : "one call");
    table_cell(t, "%lld", (long long)(s->o.batch * s->o.tokens));
    table_cell(t, "%s", s->kernel);
    table_cell(t, "%s", format_bytes(s->bytes).text);
    table_cell(t, "%s", format_seconds(seconds->median).text);
    table_cell(t, "%s..%s", format_seconds(seconds->low).text, format_seconds(seconds->high).text);
    table_cell(t, "%.1f", 1e-9 * s->bytes / seconds->median);
    table_cell(t, "%.1f", 1e-9 * s->bytes / s->m.floor.median);
    table_cell(t, "%.0f %%", 100 * ratio->median);
    table_cell(t, "%.2fx", seconds->median / s->m.apply.median);
}

static void print_append(const demo_step *steps, int32_t count, FILE *file) {
    table t;
    table_begin(&t, "step|tokens|*kernel|data|time|quartiles|GB/s|copy GB/s|of copy|takes");
    for (int32_t i = 0; i < count; i++) {
        add_append(&t, &steps[i], false);
        if (steps[i].m.gain.median > 0)
            add_append(&t, &steps[i], true);
    }
    table_print(&t, file);
    table_end(&t);
}

static void print_steps(const demo_step *steps, int32_t count, FILE *file) {
    table t;
    table_begin(&t, "step|tokens|kernel|data|time|GB/s|copy GB/s|of copy|max error|of bound");
    for (int32_t i = 0; i < count; i++) {
        const demo_step *s = &steps[i];
        table_cell(&t, "%s", s->name);
        int64_t tokens = s->o.batch * s->o.tokens;
        table_cell(&t, "%lld", (long long)tokens);
        table_cell(&t, "%s", s->kernel);
        table_cell(&t, "%s", format_bytes(s->bytes).text);
        table_cell(&t, "%s", format_seconds(s->m.apply.median).text);
        table_cell(&t, "%.1f", 1e-9 * s->bytes / s->m.apply.median);
        table_cell(&t, "%.1f", 1e-9 * s->bytes / s->m.floor.median);
        table_cell(&t, "%.0f %%", 100 * s->m.apply_ratio.median);
        table_cell(&t, "%.2e", s->checked.max_error);
        table_cell(&t, "%.0f %%", 100 * s->checked.worst);
    }
    table_print(&t, file);
    table_end(&t);
}

/* Prints how the outputs compared; the number of elements outside their bounds. */
static int64_t print_verdict(const demo_step *steps, int32_t count, FILE *file) {
    int64_t elements = 0, refused = 0, equal = 0;
    for (int32_t i = 0; i < count; i++) {
        elements += steps[i].checked.elements - steps[i].checked.steps;
        equal += steps[i].checked.steps;
        refused += steps[i].checked.refused;
    }
    fputs("\nchecked ", file);
    if (equal)
        fprintf(file, "%lld outputs of one call against its steps' and ", (long long)equal);
    fprintf(file, "%lld outputs%s against 256-bit arithmetic: ", (long long)elements,
            equal ? " of rope_apply" : "");
    if (refused)
        fprintf(file, "FAILED, %lld are wrong\n", (long long)refused);
    else
        fprintf(file, "%s\n",
                equal ? "all equal, or within their bound" : "all within their bound");
    return refused;
}

static int demonstrate(options *o, const target *t) {
    demo_step *steps = pool_alloc(o->pool, 2, sizeof *steps);
    progress bar;
    record_list list;
    bool done = steps != NULL;
    if (!steps)
        return EXIT_ENVIRONMENT;
    if (o->append && !o->appends.cache)
        o->appends.cache = ROPE_CACHE_SLOTS;
    o->in_place = o->latent && !o->appends.q.store_dtype; /* as q's windows alone change */
    steps[0] = (demo_step){.name = "prefill", .o = *o};
    steps[0].o.cache = CACHE_COLD;
    steps[1] = (demo_step){.name = "decode", .o = *o};
    steps[1].o.position_offset = o->tokens;
    steps[1].o.tokens = 1;
    record_begin(&list, "demo", o, &t->info);
    progress_begin(&bar, 2 * measure_steps(rounds_of(o)) + CHECK_SAMPLE + 1);
    for (int32_t i = 0; i < 2 && done; i++)
        done = run_step(&steps[i], t, &bar, &list);
    progress_end(&bar);
    FILE *file = text_open(o->json);
    int64_t refused = 0;
    if (done) {
        print_heading(o, t, file);
        if (o->append)
            print_append(steps, 2, file);
        else
            print_steps(steps, 2, file);
        refused = print_verdict(steps, 2, file);
    }
    text_close(file);
    if (!done)
        cJSON_Delete(list.document);
    if (!done || !record_end(&list, o))
        return EXIT_ENVIRONMENT;
    return refused ? EXIT_CHECK_FAILED : EXIT_OK;
}

int command_demo(options *o) {
    target t;
    if (o->tokens < 0)
        o->tokens = o->attention ? (o->quick ? DEMO_ATTENTION_QUICK_TOKENS : DEMO_ATTENTION_TOKENS)
                    : o->quick   ? QUICK_TOKENS
                                 : TOKENS;
    int status = !target_open(&t, o) ? EXIT_ENVIRONMENT
                 : o->attention      ? demo_attention(o, &t)
                                     : demonstrate(o, &t);
    target_close(&t);
    return status;
}
