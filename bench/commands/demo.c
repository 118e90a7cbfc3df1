#include "bench/commands/bench.h"
#include "bench/commands/commands.h"
#include "bench/output/format.h"
#include "bench/output/message.h"

enum { ROUNDS = 15, QUICK_ROUNDS = 3 };
/* Of a prompt; of attention, whose time grows with their square, less. */
enum { TOKENS = 4096, QUICK_TOKENS = 512, ATTENDED = 1024, QUICK_ATTENDED = 128 };

static void set_sizes(options *o) {
    if (o->tokens < 0)
        o->tokens = o->attention ? (o->quick ? QUICK_ATTENDED : ATTENDED)
                    : o->quick   ? QUICK_TOKENS
                                 : TOKENS;
    if (o->append && !o->appends.cache)
        o->appends.cache = ROPE_CACHE_SLOTS;
    if (o->latent && !o->appends.q.store_dtype) /* q's windows alone change */
        o->in_place = true;
    o->rounds = o->quick ? QUICK_ROUNDS : ROUNDS;
}

static options prefill_of(const options *o) {
    options c = *o;
    c.label = "prefill";
    c.cache = CACHE_COLD;
    return c;
}

/* One token behind the prompt; attention finds its keys in pages. */
static options decode_of(const options *o) {
    options c = *o;
    c.label = "decode";
    c.tokens = 1;
    if (!o->attention) {
        c.position_offset = o->tokens;
        return c;
    }
    c.keys = o->tokens + 1;
    c.appends.cache = ROPE_CACHE_TABLE;
    return c;
}

static void print_heading(const options *o) {
    FILE *file = text_open(o->json);
    const int32_t q_dim = o->desc.head_dim, k_dim = o->desc.k_head_dim ? o->desc.k_head_dim : q_dim;
    fprintf(file, "%s: %s, %s of %d and ", o->config, options_dtype(o),
            format_amount(o->q_heads, "query head").text, q_dim);
    fprintf(file, "%s of %d\n", format_amount(o->k_heads, "key head").text, k_dim);
    if (o->quick)
        fputs("quick: fewer tokens and rounds, not for comparison\n", file);
    text_close(file);
}

int command_demo(options *o) {
    target t;
    int status = EXIT_ENVIRONMENT;
    set_sizes(o);
    if (target_open(&t, o)) {
        options cases[] = {prefill_of(o), decode_of(o)};
        print_heading(o);
        status = bench_cases("demo", o, &t, cases, 2);
    }
    target_close(&t);
    return status;
}
