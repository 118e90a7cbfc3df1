#include "bench/commands/accuracy_attention.h"

#include "bench/attention/check.h"
#include "bench/operation/workload.h"
#include "bench/output/format.h"
#include "bench/output/message.h"
#include "bench/output/table.h"
#include "bench/support/dtype.h"

#include <string.h>

static const int64_t lengths[] = {128, 1 << 10, 8 << 10, 32 << 10};
enum { LENGTHS = sizeof lengths / sizeof lengths[0], QUICK_LENGTHS = 2, QUERIES = 4 };

/* What the rows of the table share. */
typedef struct errors {
    const options *o;
    record_list *list;
    table rows;
} errors;

static void add_row(errors *e, const options *o, const char *kernel, const check_result *r,
                    double rms) {
    const char *given = options_line(e->o, "");
    cJSON *record =
        record_add(e->list, given, options_command(e->o, "accuracy", given, ""), kernel);
    const double elements = (double)(r->elements - r->steps);
    cJSON_AddStringToObject(record, "backend", o->desc.backend);
    cJSON_AddStringToObject(record, "dtype", dtype_name(o->desc.dtype));
    cJSON_AddNumberToObject(record, "keys", (double)o->keys);
    cJSON_AddNumberToObject(record, "rms_error", rms);
    cJSON_AddNumberToObject(record, "max_error", r->max_error);
    cJSON_AddNumberToObject(record, "worst", r->worst);
    cJSON_AddNumberToObject(record, "elements", elements);
    table_cell(&e->rows, "%s", format_count(o->keys).text);
    table_cell(&e->rows, "%s", kernel);
    table_cell(&e->rows, "%.2e", rms);
    table_cell(&e->rows, "%.2e", r->max_error);
    table_cell(&e->rows, "%.1f %%", 100 * r->worst);
}

static bool run_length(errors *e, const options *o, rope_device *device) {
    workload w;
    check_result result;
    double rms;
    const bool done = workload_create(&w, o, device, 1) && attention_check(&w, true, &result, &rms);
    if (done)
        add_row(e, o, w.kernel, &result, rms);
    workload_destroy(&w);
    return done;
}

/* Queries at the end of as many keys as each length has, in pages. */
static bool run_backend(errors *e, const char *backend, const char *kernel, int64_t keys) {
    options o = *e->o;
    rope_device *device = NULL;
    o.desc.backend = backend;
    o.desc.kernel = kernel;
    o.keys = keys;
    const bool done = succeeded(rope_device_open(backend, o.desc.device, &device), "device") &&
                      run_length(e, &o, device);
    rope_device_close(device);
    return done;
}

static bool run_others(errors *e, int64_t keys) {
    bool done = true;
    for (int32_t i = 0; i < rope_backend_count() && done; i++) {
        rope_backend_info info = {.struct_size = sizeof info};
        if (rope_backend_get(i, &info) == ROPE_OK && info.status == ROPE_OK &&
            info.device_count > e->o->desc.device && strcmp(info.name, e->o->desc.backend) != 0)
            done = run_backend(e, info.name, NULL, keys);
    }
    return done && run_backend(e, "cpu", "reference", keys);
}

bool accuracy_attention(const options *o, bool others, record_list *list, FILE *file) {
    options full = *o;
    errors e = {.o = &full, .list = list};
    bool done = true;
    if (o->tokens == 0 || o->q_heads == 0 || o->k_heads == 0) {
        message("nothing was checked; allowed is tokens, q-heads and k-heads >= 1");
        return false;
    }
    full.tokens = o->tokens > 0 ? o->tokens : QUERIES;
    full.appends.cache = ROPE_CACHE_TABLE;
    table_begin(&e.rows, "keys|kernel|rms error|max error|of bound");
    for (int i = 0; i < (o->quick ? QUICK_LENGTHS : LENGTHS) && done; i++) {
        const int64_t keys = lengths[i] > full.tokens ? lengths[i] : full.tokens;
        done = run_backend(&e, o->desc.backend, o->desc.kernel, keys) &&
               (!others || run_others(&e, keys));
    }
    if (done) {
        fprintf(file, "%s, %s by %s, beside attention in double on the same rotated inputs\n",
                options_dtype(o), format_amount(full.tokens, "token").text,
                format_amount(o->q_heads, "head").text);
        table_print(&e.rows, file);
    }
    table_end(&e.rows);
    return done;
}
