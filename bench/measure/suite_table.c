#include "bench/measure/suite_table.h"

#include "bench/output/format.h"
#include "bench/support/dtype.h"

#include <math.h>

void suite_table_begin(suite_table *s, const char *suite) {
    *s = (suite_table){.suite = suite};
    table_begin(&s->t, "case|B x T|*D|*dtype|*cache|*data|time|GB/s|TFLOP/s|copy|of copy|quartiles|"
                       "tables|A/A|call|host|*kernel");
}

/* A number, where it was measured. */
static void add(table *t, const char *format, double number, bool known) {
    if (known)
        table_cell(t, format, number);
    else
        table_cell(t, "-");
}

void suite_table_add(suite_table *s, const options *o, const workload *w, const measurement *m) {
    table *t = &s->t;
    const summary *ratio = &m->kernel_ratio;
    const double bytes = 2.0 * (double)w->floor_bytes, seconds = m->kernel.median;
    const double repeat = fabs(m->self_ratio.median - 1);
    const size_t tables = measure_table_bytes(w, o);
    const bool copies = !o->attention;
    table_cell(t, "%s", o->label && *o->label ? o->label : "-");
    table_cell(t, "%lld x %lld", (long long)o->batch, (long long)o->tokens);
    table_cell(t, "%d", o->desc.head_dim);
    table_cell(t, "%s", dtype_name(o->desc.dtype));
    table_cell(t, "%s", o->cache == CACHE_COLD ? "cold" : "warm");
    table_cell(t, "%s", format_bytes(bytes).text);
    table_cell(t, "%s", format_seconds(seconds).text);
    table_cell(t, "%.4g", 1e-9 * bytes / seconds);
    add(t, "%.3g", 1e-12 * w->flops / seconds, !copies);
    table_cell(t, "%.4g", 1e-9 * bytes / m->floor.median);
    add(t, "%.0f %%", 100 * ratio->median, copies);
    if (copies)
        table_cell(t, "%.0f..%.0f %%", 100 * ratio->low, 100 * ratio->high);
    else
        table_cell(t, "-");
    table_cell(t, "%s", tables ? format_bytes((double)tables).text : "-");
    table_cell(t, "%.1f %%", 100 * repeat);
    table_cell(t, "%s", format_seconds(m->apply.median).text);
    table_cell(t, "%s", format_seconds(m->host.median).text);
    table_cell(t, "%s", w->kernel);
    s->worst_repeat = repeat > s->worst_repeat ? repeat : s->worst_repeat;
    s->rows++;
}

void suite_table_end(suite_table *s, FILE *file) {
    if (s->rows) {
        fprintf(file, "\n%s%s", s->suite ? s->suite : "", s->suite ? "\n" : "");
        table_print(&s->t, file);
        fprintf(file, "A/A: one copy before and after each kernel disagrees by at most %.1f %%\n",
                100 * s->worst_repeat);
    }
    table_end(&s->t);
}
