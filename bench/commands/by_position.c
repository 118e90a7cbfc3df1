#include "bench/commands/by_position.h"

#include "bench/operation/operation.h"
#include "bench/output/format.h"
#include "bench/output/message.h"
#include "bench/output/table.h"
#include "bench/support/dtype.h"
#include "tests/oracle/format.h"
#include "tests/oracle/oracle.h"

#include <math.h>
#include <string.h>

static const int64_t ranges[] = {1 << 10,  8 << 10,          128 << 10,       1 << 20,
                                 16 << 20, INT64_C(1) << 31, INT64_C(1) << 36};
static const int32_t modes[] = {ROPE_ANGLE_EXACT, ROPE_ANGLE_F32};
enum { RANGES = sizeof ranges / sizeof ranges[0], TOKENS = 512 };

/* Largest errors of one mode and range. */
typedef struct errors {
    double angle, ulp; /* absolute; in units in the last place of the larger element of a pair */
    char kernel[WORKLOAD_KERNELS];
} errors;

/* A head of the window alone: the angles depend on nothing else. */
static options reduced(const options *given) {
    options o = *given;
    rope_desc *d = &o.desc;
    d->head_dim = d->rotary_dim = d->rotary_dim ? d->rotary_dim : d->head_dim;
    d->rotary_offset = d->k_head_dim = d->k_rotary_offset = 0;
    d->pairing_in = d->pairing_out = d->direction = d->arithmetic = 0;
    d->shard = d->shard_rank = d->shard_size = 0;
    d->table_dtype = d->table_width = d->out_of_range = 0;
    d->xpos_scale_base = 0;
    d->xpos_center = 0;
    if (d->rope_type == ROPE_TYPE_LONGROPE)
        d->longrope_select = ROPE_LONGROPE_LONG;
    o.append = o.attention = o.backward = o.in_place = false;
    o.batch = o.q_heads = 1;
    o.k_heads = 0;
    o.position_ids = IDS_RANDOM;
    o.position_offset = 0;
    o.cu_seqlens.count = o.sequence_offsets.count = o.sequence_lengths.count = 0;
    o.tokens = given->tokens < 0 ? TOKENS : given->tokens;
    return o;
}

/* Distance between neighbouring numbers of dtype at a magnitude. */
static double last_place(int32_t dtype, double magnitude) {
    const oracle_format *f = oracle_format_of(dtype);
    const int exponent = magnitude > 0 ? ilogb(magnitude) - f->precision + 1 : f->least;
    return ldexp(1, exponent > f->least ? exponent : f->least);
}

/* Outputs beside the rule's angles as real numbers. */
static void compare(const workload *w, oracle *truth, const char *got, errors *e) {
    const int32_t dims = w->desc.head_dim, pairs = dims / 2, dtype = w->desc.dtype;
    const rope_args args = rope_args_on(w, &w->on_host.rope, w->inputs, w->outputs);
    double value[ROPE_MAX_ROTARY_DIM], bound[ROPE_MAX_ROTARY_DIM];
    for (int64_t token = 0; token < args.tokens; token++) {
        oracle_rotate(truth, &args, 0, 0, token, value, bound);
        for (int32_t i = 0; i < pairs; i++) {
            const int64_t at = token * dims + i;
            const double error = fmax(fabs(oracle_load(dtype, got, at) - value[i]),
                                      fabs(oracle_load(dtype, got, at + pairs) - value[i + pairs]));
            const double size = fmax(fabs(value[i]), fabs(value[i + pairs]));
            e->angle = fmax(e->angle, error);
            e->ulp = fmax(e->ulp, error / last_place(dtype, size));
        }
    }
}

/* Makes every input (1, 0), whose rotations are cos and sin. */
static bool load_unit_vectors(workload *w) {
    const int64_t dims = w->desc.head_dim;
    for (int64_t i = 0; i < w->o->tokens * dims; i++)
        oracle_store(w->desc.dtype, w->inputs, i, i % dims < dims / 2);
    return workload_upload(w);
}

static bool run(const options *o, const target *t, bool unit_vectors, errors *e) {
    workload w;
    rope_desc exact = o->desc;
    exact.angle_mode = ROPE_ANGLE_EXACT;
    oracle *truth = oracle_create(&exact);
    const char *got = NULL;
    const bool done = workload_create(&w, o, t->device, 1) &&
                      (!unit_vectors || load_unit_vectors(&w)) && workload_run(&w, 0) &&
                      (got = workload_fetch(&w));
    if (done && truth)
        compare(&w, truth, got, e);
    else if (!truth)
        message("no memory for the oracle");
    snprintf(e->kernel, sizeof e->kernel, "%s", w.kernel);
    workload_destroy(&w);
    oracle_destroy(truth);
    return done && truth;
}

/* cos and sin in f32, or in f64 where that is asked for, without an attention factor; outputs in
 * dtype. */
static bool run_mode(const options *given, const target *t, errors *angles, errors *outputs) {
    options o = *given;
    if (!run(&o, t, false, outputs))
        return false;
    o.desc.dtype = o.desc.dtype == ROPE_F64 ? ROPE_F64 : ROPE_F32;
    o.desc.mscale = o.desc.mscale_all_dim = o.desc.short_mscale = o.desc.long_mscale = 0;
    o.desc.attention_factor = 1;
    return run(&o, t, true, angles);
}

static void add_row(record_list *list, table *t, const options *given, const options *o,
                    const errors *angles, const errors *outputs) {
    const int64_t samples = o->tokens * (o->desc.head_dim / 2);
    const char *const mode = o->desc.angle_mode == ROPE_ANGLE_F32 ? "f32" : "exact";
    cJSON *record = record_named(list, NULL, given, "verify", outputs->kernel);
    cJSON_AddStringToObject(record, "suite", "accuracy");
    cJSON_AddStringToObject(record, "implementation", "ropekit");
    cJSON_AddStringToObject(record, "dtype", dtype_name(o->desc.dtype));
    cJSON_AddStringToObject(record, "angle_mode", mode);
    cJSON_AddNumberToObject(record, "positions", (double)o->max_position + 1);
    cJSON_AddNumberToObject(record, "cos_sin_error", angles->angle);
    cJSON_AddNumberToObject(record, "output_ulp", outputs->ulp);
    cJSON_AddNumberToObject(record, "samples", (double)samples);
    table_cell(t, "%s", mode);
    table_cell(t, "%s", format_count(o->max_position + 1).text);
    table_cell(t, "%.2e", angles->angle);
    table_cell(t, outputs->ulp < 1e4 ? "%.2f" : "%.2e", outputs->ulp);
    table_cell(t, "%s", outputs->kernel);
}

bool by_position(const options *given, const target *target, record_list *list, FILE *file) {
    options o = reduced(given);
    table t;
    bool done = o.tokens > 0;
    if (!done)
        message("nothing was checked; allowed with --by-position is tokens >= 1");
    table_begin(&t, "angles|positions below|max cos/sin error|max output error in ulp|*kernel");
    for (int r = 0; r < RANGES && done; r++)
        for (int m = 0; m < 2 && done; m++) {
            errors angles = {0}, outputs = {0};
            if (given->desc.angle_mode && given->desc.angle_mode != modes[m])
                continue;
            o.desc.angle_mode = modes[m];
            o.max_position = ranges[r] - 1;
            done = run_mode(&o, target, &angles, &outputs);
            if (done)
                add_row(list, &t, given, &o, &angles, &outputs);
        }
    if (done) {
        fprintf(file, "%s, %s, %s a range, seed %lld\n", options_dtype(given),
                format_amount(o.desc.head_dim / 2, "pair").text,
                format_amount(o.tokens, "position").text, (long long)o.seed);
        table_print(&t, file);
    }
    table_end(&t);
    return done;
}
