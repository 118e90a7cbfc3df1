#include "bench/measure/suite_table.h"

#include "bench/output/format.h"
#include "bench/support/dtype.h"
#include "bench/workload/target.h"

#include <math.h>
#include <string.h>

#define HEADINGS "*cache|*data|time|GB/s|copy|ratio|quartiles|A/A|eager|host|"
#define ATTENTION "*cache|time|TFLOP/s|GB/s|copy|tax|steps|A/A|eager|host|*kernel"
#define OWN 4

/* The next of headings separated by '|', empty where a column is left out. */
static size_t next_heading(const char **headings, char *heading, size_t size) {
    size_t length = strcspn(*headings, "|");
    snprintf(heading, size, "%.*s", (int)length, *headings);
    *headings += length + ((*headings)[length] == '|');
    return length;
}

static const char *own_headings(const suite_table *s) {
    return s->suite ? suite_headings(s->suite) : "|T|D|dtype";
}

static bool is(const suite_table *s, const char *suite) {
    return s->suite && strcmp(s->suite, suite) == 0;
}

void suite_table_begin(suite_table *s, const bench_case *first) {
    char headings[192] = "", heading[32];
    size_t used = 0;
    *s = (suite_table){.suite = first ? first->suite : NULL,
                       .append = first && first->o.append,
                       .attention = first && first->o.attention,
                       .backward = first && first->o.backward};
    const char *own = own_headings(s);
    for (int i = 0; i < OWN; i++)
        if (next_heading(&own, heading, sizeof heading))
            used += (size_t)snprintf(headings + used, sizeof headings - used, "%s|", heading);
    if (s->attention)
        snprintf(headings + used, sizeof headings - used, ATTENTION);
    else
        snprintf(headings + used, sizeof headings - used, "%s" HEADINGS "%s%s*kernel",
                 is(s, "rules") ? "of the first|tables|" : "",
                 is(s, "overhead") ? "above a copy's|" : "", s->append ? "steps|rotations|" : "");
    table_begin(&s->t, headings);
}

static void add_own(suite_table *s, const bench_case *c) {
    char number[2][48], heading[32];
    snprintf(number[0], sizeof number[0], s->attention ? "%lld x %lld" : "%.0lld%lld",
             s->attention ? (long long)c->o.batch : 0, (long long)c->o.tokens);
    snprintf(number[1], sizeof number[1], "%d", c->o.desc.head_dim);
    const char *cells[OWN] = {c->label, number[0], number[1], dtype_name(c->o.desc.dtype)};
    const char *own = own_headings(s);
    for (int i = 0; i < OWN; i++)
        if (next_heading(&own, heading, sizeof heading))
            table_cell(&s->t, "%s", cells[i]);
}

static void add_rule(suite_table *s, double seconds, size_t table_bytes) {
    s->first = s->first > 0 ? s->first : seconds;
    table_cell(&s->t, "%.3f", seconds / s->first);
    table_cell(&s->t, "%s", table_bytes ? format_bytes((double)table_bytes).text : "-");
}

/* A factor, where it was measured. */
static void add_factor(table *t, const char *format, double factor, bool known) {
    if (known)
        table_cell(t, format, factor);
    else
        table_cell(t, "-");
}

/* Of all products, of bytes beside the copy, and beside attention on rotated inputs. */
static void add_attention(table *t, const workload *w, const measurement *m) {
    const double bytes = 2.0 * (double)w->floor_bytes;
    table_cell(t, "%s", format_seconds(m->kernel.median).text);
    table_cell(t, "%.3g", 1e-12 * w->flops / m->kernel.median);
    table_cell(t, "%.4g", 1e-9 * bytes / m->kernel.median);
    table_cell(t, "%.4g", 1e-9 * bytes / m->floor.median);
    add_factor(t, "%.1f %%", 100 * (m->multiple.median - 1), m->multiple.median > 0);
    add_factor(t, "%.2fx", m->gain.median, m->multiple.median > 0);
}

static void add_copied(table *t, const workload *w, const measurement *m) {
    const double bytes = 2.0 * (double)w->floor_bytes;
    table_cell(t, "%s", format_bytes(bytes).text);
    table_cell(t, "%s", format_seconds(m->kernel.median).text);
    table_cell(t, "%.4g", 1e-9 * bytes / m->kernel.median);
    table_cell(t, "%.4g", 1e-9 * bytes / m->floor.median);
    table_cell(t, "%.3f", m->kernel_ratio.median);
    table_cell(t, "%.3f..%.3f", m->kernel_ratio.low, m->kernel_ratio.high);
}

void suite_table_add(suite_table *s, const bench_case *c, const char *kernel, const workload *w,
                     const measurement *m) {
    double repeat = fabs(m->self_ratio.median - 1);
    table *t = &s->t;
    add_own(s, c);
    if (is(s, "rules"))
        add_rule(s, m->kernel.median, measure_table_bytes(w, &c->o));
    table_cell(t, "%s", c->o.cache == CACHE_COLD ? "cold" : "warm");
    (s->attention ? add_attention : add_copied)(t, w, m);
    table_cell(t, "%.1f %%", 100 * repeat);
    table_cell(t, "%s", format_seconds(m->apply.median).text);
    table_cell(t, "%s", format_seconds(m->host_seconds).text);
    if (is(s, "overhead"))
        table_cell(t, "%s", format_seconds(m->host_seconds - m->launch_seconds).text);
    if (s->append) {
        add_factor(t, "%.2fx", m->gain.median, m->gain.median > 0);
        add_factor(t, "%.2f", m->multiple.median, m->multiple.median > 0);
    }
    table_cell(t, "%s", kernel);
    s->most = m->speedup.median > s->most ? m->speedup.median : s->most;
    s->least = m->speedup.median < s->least || !s->rows ? m->speedup.median : s->least;
    s->worst_repeat = repeat > s->worst_repeat ? repeat : s->worst_repeat;
    s->rows++;
}

void suite_table_end(suite_table *s, FILE *file) {
    if (s->rows) {
        fprintf(file, "\n%s\n", s->suite ? s->suite : "as given");
        table_print(&s->t, file);
        fprintf(file, "A/A: one copy before and after each kernel disagrees by at most %.1f %%\n",
                100 * s->worst_repeat);
        if (s->append)
            fprintf(
                file,
                "steps: norm, rope_apply and store one after the other take as many times "
                "as long; rotations: the time in calls of rope_apply that move as many bytes\n");
        if (s->attention)
            fprintf(file,
                    "tax: time above that of attention%s alone on rotated inputs; steps: "
                    "rope_apply and that take as many times as long\n",
                    s->backward ? " and its backward" : "");
        if (s->most > 0)
            fprintf(file, "one thread takes %.3g to %.3g times as long as %d\n", s->least, s->most,
                    target_threads());
    }
    table_end(&s->t);
}
