#include "bench/check.h"
#include "bench/commands.h"
#include "bench/format.h"
#include "bench/message.h"
#include "bench/record.h"
#include "bench/target.h"

static bool apply_once(workload *w, const rope_plan *plan) {
    return succeeded(rope_apply(plan, &w->sets[0]), "rope_apply") &&
           succeeded(rope_device_synchronize(w->device), "rope_apply") && workload_fetch(w);
}

static void print_result(FILE *file, const options *o, const check_result *r, const char *kernel) {
    fprintf(file, "%s, ", options_dtype(o));
    options_describe(o, file);
    fprintf(file, "%s: %lld elements, max error %.3g; nearest to its bound: %.3g of %.3g\n", kernel,
            (long long)r->elements, r->max_error, r->worst * r->bound, r->bound);
    if (r->refused == 0) {
        fprintf(file, "passed\n");
        return;
    }
    fprintf(file,
            "failed: %s outside their bound; the worst is %s[batch %lld, token %lld, "
            "head %lld, dim %lld] = %.17g, the oracle has %.17g\n",
            format_amount(r->refused, "element").text, r->tensor ? "k" : "q", (long long)r->batch,
            (long long)r->token, (long long)r->head, (long long)r->dim, r->got, r->value);
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

static int verify(options *o, target *t, rope_plan *plan) {
    workload w;
    progress bar;
    check_result result;
    progress_begin(&bar, o->batch * o->tokens);
    bool checked = workload_create(&w, o, t->device, 1) && apply_once(&w, plan) &&
                   check_workload(&w, NULL, 0, &bar, &result);
    progress_end(&bar);
    workload_destroy(&w);
    return checked ? report(o, t, rope_plan_kernel(plan), &result) : EXIT_ENVIRONMENT;
}

int command_verify(options *o) {
    target t;
    rope_plan *plan = NULL;
    int status = EXIT_ENVIRONMENT;
    if (o->tokens < 0)
        o->tokens = 32;
    if (target_open(&t, o) && target_plan(o, &plan))
        status = verify(o, &t, plan);
    rope_plan_destroy(plan);
    target_close(&t);
    return status;
}
