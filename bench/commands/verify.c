#include "bench/check/check.h"
#include "bench/commands/commands.h"
#include "bench/measure/record.h"
#include "bench/operation/operation.h"
#include "bench/options/case_name.h"
#include "bench/output/format.h"
#include "bench/output/message.h"
#include "bench/workload/target.h"

enum { TOKENS = 32 };

static void print_result(FILE *file, const options *o, const check_result *r, const char *kernel) {
    const bool differs = r->steps && r->elements == r->steps;
    const check_place *at = &r->at;
    fprintf(file, "%s: %s\n", options_dtype(o), case_name(o));
    if (r->steps)
        fprintf(file, "%s: %lld elements beside those of a call for each step\n", kernel,
                (long long)r->steps);
    if (r->elements > r->steps)
        fprintf(file, "%s: %lld elements, max error %.3g", kernel,
                (long long)(r->elements - r->steps), r->max_error);
    if (r->elements > r->steps && r->bound > 0)
        fprintf(file, "; nearest to its bound: %.3g of %.3g", r->worst * r->bound, r->bound);
    fputs(r->elements > r->steps ? "\n" : "", file);
    if (r->rms > 0)
        fprintf(file, "rms error of out: %.2e of the sums of weight times magnitude\n", r->rms);
    if (r->refused == 0) {
        fprintf(file, "passed\n");
        return;
    }
    fprintf(file,
            "failed: %s %s; the %s is %s[batch %lld, token %lld, head %lld, dim %lld] = %.17g, "
            "%s %.17g\n",
            format_amount(r->refused, "element").text, differs ? "differ" : "outside their bound",
            differs ? "first" : "worst", check_tensors[at->tensor], (long long)at->batch,
            (long long)at->token, (long long)at->head, (long long)at->dim, r->got,
            differs ? "the steps give" : "the oracle has", r->value);
}

/* Whether every element is within its bound. */
static bool verify(const options *o, const target *t, record_list *list, FILE *file, bool *passed) {
    workload w;
    check_result r;
    const bool done = workload_create(&w, o, t->device, 1) && check_call(&w, true, &r);
    if (done) {
        cJSON *record = record_named(list, o, "verify", w.kernel);
        record_shape(record, o);
        record_check(record, &r);
        if (r.rms > 0)
            cJSON_AddNumberToObject(record, "rms_error", r.rms);
        print_result(file, o, &r, w.kernel);
        *passed = r.refused == 0;
    }
    workload_destroy(&w);
    return done;
}

int command_verify(options *o) {
    target t;
    record_list list;
    int status = EXIT_ENVIRONMENT;
    if (target_open(&t, o)) {
        bool passed = true;
        FILE *file = text_open(o->json);
        if (o->tokens < 0)
            o->tokens = TOKENS;
        record_begin(&list, "verify", o, &t.info);
        const bool done = verify(o, &t, &list, file, &passed);
        text_close(file);
        if (record_end(&list, o, done))
            status = passed ? EXIT_OK : EXIT_CHECK_FAILED;
    }
    target_close(&t);
    return status;
}
