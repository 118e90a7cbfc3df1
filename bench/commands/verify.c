#include "bench/commands/commands.h"
#include "bench/measure/record.h"
#include "bench/operation/check.h"
#include "bench/output/format.h"
#include "bench/output/message.h"
#include "bench/workload/target.h"

static void print_result(FILE *file, const options *o, const check_result *r, const char *kernel) {
    const bool differs = r->steps && r->elements == r->steps;
    fprintf(file, "%s, ", options_dtype(o));
    options_describe(o, file);
    if (r->steps)
        fprintf(file, "%s: %lld elements beside %s, one after the other\n", kernel,
                (long long)r->steps,
                o->append     ? "norm, rope_apply and store"
                : o->backward ? "rope_apply, attention, its backward and the transpose"
                              : "rope_apply and attention");
    if (r->elements > r->steps)
        fprintf(file, "%s: %lld elements, max error %.3g; nearest to its bound: %.3g of %.3g\n",
                o->append ? "rope_apply" : kernel, (long long)(r->elements - r->steps),
                r->max_error, r->worst * r->bound, r->bound);
    if (r->refused == 0) {
        fprintf(file, "passed\n");
        return;
    }
    fprintf(file,
            "failed: %s %s; the %s is %s[batch %lld, token %lld, head %lld, dim %lld] = %.17g, "
            "%s %.17g\n",
            format_amount(r->refused, "element").text, differs ? "differ" : "outside their bound",
            differs ? "first" : "worst", check_tensors[r->tensor], (long long)r->batch,
            (long long)r->token, (long long)r->head, (long long)r->dim, r->got,
            differs ? "the steps give" : "the oracle has", r->value);
}

static int report(const options *o, const target *t, const char *kernel, const check_result *r) {
    record_list list;
    FILE *file = text_open(o->json);
    print_result(file, o, r, kernel);
    text_close(file);
    record_begin(&list, "verify", o, &t->info);
    const char *given = options_line(o, "");
    cJSON *record = record_add(&list, given, options_command(o, "verify", given, ""), kernel);
    record_shape(record, o);
    record_check(record, r);
    if (!record_end(&list, o))
        return EXIT_ENVIRONMENT;
    return r->refused ? EXIT_CHECK_FAILED : EXIT_OK;
}

static int verify(options *o, target *t) {
    workload w;
    progress bar;
    check_result result;
    progress_begin(&bar, o->batch * o->tokens);
    bool checked = workload_create(&w, o, t->device, 1) && check_call(&w, o, true, &bar, &result);
    progress_end(&bar);
    int status = checked ? report(o, t, w.kernel, &result) : EXIT_ENVIRONMENT;
    workload_destroy(&w);
    return status;
}

int command_verify(options *o) {
    target t;
    if (o->tokens < 0)
        o->tokens = 32;
    int status = target_open(&t, o) ? verify(o, &t) : EXIT_ENVIRONMENT;
    target_close(&t);
    return status;
}
