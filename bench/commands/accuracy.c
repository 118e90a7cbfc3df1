#include "bench/commands/accuracy.h"
#include "bench/commands/accuracy_attention.h"
#include "bench/commands/commands.h"
#include "bench/operation/workload.h"
#include "bench/output/format.h"
#include "bench/output/message.h"
#include "bench/output/progress.h"
#include "bench/output/table.h"
#include "bench/rope/workload.h"
#include "bench/support/dtype.h"
#include "bench/support/random.h"
#include "bench/workload/angle_table.h"
#include "bench/workload/target.h"
#include "tests/oracle/oracle.h"

#include <math.h>
#include <string.h>

static const int64_t ranges[] = {1 << 10,  8 << 10,          128 << 10,       1 << 20,
                                 16 << 20, INT64_C(1) << 31, INT64_C(1) << 36};
static const char *const modes[] = {"exact", "f32", "table"};
#define RANGES (sizeof ranges / sizeof ranges[0])
#define MODES (sizeof modes / sizeof modes[0])

/* What the rows of the table share. */
typedef struct accuracy {
    options base; /* one head of the window alone, no shard, one axis unless frequencies restart */
    target t;
    angle_rule rule;
    oracle *truth;                  /* exact angles */
    int64_t count;                  /* positions tried in a range */
    int64_t *positions;             /* of one range, once for each axis */
    double *cosine, *sine;          /* true values, count * pairs */
    double attention_factor;        /* of the rule */
    double angle_error, output_ulp; /* of one mode and range */
    char kernel[WORKLOAD_KERNELS];
    progress bar;
} accuracy;

/* Keeps the frequency rule and drops what the angles do not depend on. */
static void reduce_shape(options *o) {
    rope_desc *d = &o->desc;
    d->head_dim = d->rotary_dim ? d->rotary_dim : d->head_dim;
    d->rotary_dim = d->head_dim;
    d->rotary_offset = d->k_head_dim = d->k_rotary_offset = 0;
    d->pairing_in = d->pairing_out = d->direction = d->arithmetic = 0;
    d->shard = d->shard_rank = d->shard_size = 0;
    if (d->axis_frequency != ROPE_AXIS_FREQUENCY_RESTART) {
        d->axes = d->axis_layout = d->axis_frequency = 0;
        d->pair_axis = NULL;
        memset(d->sections, 0, sizeof d->sections);
    }
    if (d->rope_type == ROPE_TYPE_LONGROPE)
        d->longrope_select = ROPE_LONGROPE_LONG;
    o->batch = o->q_heads = 1;
    o->k_heads = 0;
    o->in_place = false;
    o->desc.xpos_scale_base = 0;
    o->desc.xpos_center = 0;
}

static bool prepare(accuracy *a, options *o) {
    if (o->tokens == 0) {
        message("--tokens is 0; allowed is 1 or more positions of each range");
        return false;
    }
    reduce_shape(o);
    a->base = *o;
    a->count = o->tokens >= 0 ? o->tokens : o->quick ? 64 : 512;
    a->base.tokens = a->count;
    rope_desc desc = o->desc;
    if (!angle_rule_take(&desc, &a->rule))
        return false;
    desc = o->desc;
    desc.angle_mode = ROPE_ANGLE_EXACT;
    desc.table_dtype = desc.table_width = desc.out_of_range = 0;
    a->truth = oracle_create(&desc);
    if (!a->truth) {
        message("no memory for the oracle");
        return false;
    }
    a->attention_factor = oracle_attention_factor(a->truth, 0);
    size_t entries = (size_t)(a->count * a->rule.pairs);
    int64_t ids = a->count * (a->base.desc.axes ? a->base.desc.axes : 1);
    a->positions = pool_alloc(o->pool, (size_t)ids, sizeof *a->positions);
    a->cosine = pool_alloc(o->pool, entries, sizeof *a->cosine);
    a->sine = pool_alloc(o->pool, entries, sizeof *a->sine);
    a->base.positions = (index_list){a->positions, ids};
    if (!a->positions || !a->cosine || !a->sine)
        message("--tokens is %lld; allowed is what fits memory", (long long)a->count);
    return a->positions && a->cosine && a->sine;
}

/* Draws the positions of a range, its last one among them, and cos and sin of the rule's angles. */
static void draw_range(accuracy *a, int64_t range) {
    uint64_t state = (uint64_t)a->base.seed ^ (uint64_t)range;
    for (int64_t i = 0; i < a->count; i++) {
        a->positions[i] = i == 0 ? range - 1 : random_below(&state, range - 1);
        for (int32_t p = 0; p < a->rule.pairs; p++) {
            int64_t at = i * a->rule.pairs + p;
            oracle_cos_sin(a->truth, 0, a->positions[i], p, &a->cosine[at], &a->sine[at]);
        }
        progress_step(&a->bar, "true angles");
    }
    for (int64_t i = a->count; i < a->base.positions.count; i++)
        a->positions[i] = a->positions[i - a->count];
}

/* Distance between neighbouring numbers of dtype at a magnitude. */
static double last_place(int32_t dtype, double magnitude) {
    static const int digits[] = {0, 24, 11, 8, 53};
    static const int least[] = {0, -126, -14, -126, -1022};
    int exponent = magnitude > 0 ? ilogb(magnitude) : least[dtype];
    return ldexp(1, (exponent > least[dtype] ? exponent : least[dtype]) - digits[dtype] + 1);
}

static double larger(double a, double b) {
    return fabs(a) > fabs(b) ? fabs(a) : fabs(b);
}

/* Errors of unit vectors, which show cos and sin themselves: without an attention factor. */
static void compare_angles(accuracy *a, const workload *w) {
    for (int64_t i = 0; i < a->count * a->rule.pairs; i++) {
        int64_t at = i / a->rule.pairs * w->desc.head_dim + i % a->rule.pairs;
        double c = oracle_load(w->desc.dtype, w->host.q.out, at);
        double s = oracle_load(w->desc.dtype, w->host.q.out, at + a->rule.pairs);
        a->angle_error = larger(a->angle_error, larger(c - a->cosine[i], s - a->sine[i]));
    }
}

static void compare_outputs(accuracy *a, const workload *w) {
    int32_t dtype = w->desc.dtype;
    double factor = a->attention_factor;
    for (int64_t i = 0; i < a->count * a->rule.pairs; i++) {
        int64_t at = i / a->rule.pairs * w->desc.head_dim + i % a->rule.pairs;
        double x1 = oracle_load(dtype, w->host.q.in, at);
        double x2 = oracle_load(dtype, w->host.q.in, at + a->rule.pairs);
        double y1 = factor * (x1 * a->cosine[i] - x2 * a->sine[i]);
        double y2 = factor * (x2 * a->cosine[i] + x1 * a->sine[i]);
        double e1 = oracle_load(dtype, w->host.q.out, at) - y1;
        double e2 = oracle_load(dtype, w->host.q.out, at + a->rule.pairs) - y2;
        a->output_ulp = larger(a->output_ulp, larger(e1, e2) / last_place(dtype, larger(y1, y2)));
    }
}

/* Makes every input (1, 0). */
static bool load_unit_vectors(workload *w, int32_t pairs) {
    void *data = (void *)w->host.q.in;
    int64_t elements = w->host.tokens * w->desc.head_dim;
    for (int64_t i = 0; i < elements; i++)
        oracle_store(w->desc.dtype, data, i, i % w->desc.head_dim < pairs ? 1 : 0);
    return succeeded(rope_device_copy_in(w->device, w->source, data, w->tensor_bytes), "copy in");
}

static bool run_kernel(accuracy *a, const options *o, bool unit_vectors) {
    workload w;
    bool done = workload_create(&w, o, a->t.device, 1) &&
                (!unit_vectors || load_unit_vectors(&w, a->rule.pairs)) && workload_run(&w, 0) &&
                rope_workload_fetch(&w);
    if (done) {
        snprintf(a->kernel, sizeof a->kernel, "%s", w.kernel);
        if (unit_vectors)
            compare_angles(a, &w);
        else
            compare_outputs(a, &w);
    }
    workload_destroy(&w);
    return done;
}

static bool run_mode(accuracy *a, int32_t mode) {
    options o = a->base;
    o.desc.angle_mode = mode;
    if (mode != ROPE_ANGLE_TABLE)
        o.desc.table_dtype = o.desc.table_width = o.desc.out_of_range = 0;
    a->angle_error = a->output_ulp = 0;
    if (!run_kernel(a, &o, false))
        return false;
    if (o.desc.dtype != ROPE_F64)
        o.desc.dtype = ROPE_F32;
    o.desc.table_dtype = 0;
    o.desc.mscale = o.desc.mscale_all_dim = o.desc.short_mscale = o.desc.long_mscale = 0;
    o.desc.attention_factor = 1;
    return run_kernel(a, &o, true);
}

static void add_row(accuracy *a, record_list *list, table *t, int32_t mode, int64_t range) {
    bool alone = a->base.command == COMMAND_ACCURACY;
    const char *given = options_line(&a->base, alone ? "" : "--suite= --dtype=");
    cJSON *record = record_add(list, options_line(&a->base, ""),
                               options_command(&a->base, alone ? "accuracy" : "bench", given,
                                               alone ? "" : "--suite=" SUITE_ACCURACY),
                               a->kernel);
    cJSON_AddStringToObject(record, "suite", SUITE_ACCURACY);
    cJSON_AddStringToObject(record, "implementation", "ropekit");
    cJSON_AddStringToObject(record, "dtype", dtype_name(a->base.desc.dtype));
    cJSON_AddStringToObject(record, "angle_mode", modes[mode - 1]);
    cJSON_AddNumberToObject(record, "positions", (double)range);
    cJSON_AddNumberToObject(record, "cos_sin_error", a->angle_error);
    cJSON_AddNumberToObject(record, "output_ulp", a->output_ulp);
    cJSON_AddNumberToObject(record, "samples", (double)(a->count * a->rule.pairs));
    table_cell(t, "%s", modes[mode - 1]);
    table_cell(t, "%s", format_count(range).text);
    table_cell(t, "%.2e", a->angle_error);
    table_cell(t, a->output_ulp < 1e4 ? "%.2f" : "%.2e", a->output_ulp);
}

static bool run_ranges(accuracy *a, record_list *list, table *t) {
    progress_begin(&a->bar, (int64_t)RANGES * a->count);
    bool done = true;
    for (size_t r = 0; r < RANGES && done; r++) {
        draw_range(a, ranges[r]);
        for (int32_t mode = ROPE_ANGLE_EXACT; mode <= (int32_t)MODES && done; mode++) {
            if (a->base.desc.angle_mode != 0 && a->base.desc.angle_mode != mode)
                continue;
            done = run_mode(a, mode);
            if (done)
                add_row(a, list, t, mode, ranges[r]);
        }
    }
    progress_end(&a->bar);
    return done;
}

static bool run(accuracy *a, options *o, record_list *list, FILE *file) {
    table t;
    table_begin(&t, "angles|positions below|max cos/sin error|max output error in ulp");
    bool done = prepare(a, o) && run_ranges(a, list, &t);
    if (done) {
        fprintf(file, "%s, %s, %s, %s a range, seed %lld\n", a->kernel, options_dtype(o),
                format_amount(a->rule.pairs, "pair").text, format_amount(a->count, "position").text,
                (long long)o->seed);
        table_print(&t, file);
    }
    table_end(&t);
    return done;
}

bool accuracy_measure(options *o, const target *t, record_list *list, FILE *file) {
    accuracy *a = pool_alloc(o->pool, 1, sizeof *a);
    if (!a)
        return false;
    a->t = *t;
    bool done = run(a, o, list, file);
    oracle_destroy(a->truth);
    return done;
}

int command_accuracy(options *o) {
    target t;
    record_list list;
    int status = EXIT_ENVIRONMENT;
    const char *backend = o->desc.backend;
    const bool all = (!backend || strcmp(backend, "auto") == 0) && !o->desc.kernel;
    if (target_open(&t, o)) {
        FILE *file = text_open(o->json);
        record_begin(&list, "accuracy", o, &t.info);
        bool done = o->attention ? accuracy_attention(o, all, &list, file)
                                 : accuracy_measure(o, &t, &list, file);
        text_close(file);
        if (!done)
            cJSON_Delete(list.document);
        status = done && record_end(&list, o) ? EXIT_OK : EXIT_ENVIRONMENT;
    }
    target_close(&t);
    return status;
}
