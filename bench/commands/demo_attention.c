#include "bench/commands/demo_attention.h"

#include "bench/attention/rows.h"
#include "bench/attention/shape.h"
#include "bench/measure/record.h"
#include "bench/output/format.h"
#include "bench/output/message.h"
#include "bench/output/table.h"
#include "bench/workload/placement.h"
#include "tests/oracle/oracle.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DECODED = 32, PROMPT_ROWS = 4, ROTATED_ROWS = 16, ALIGNMENT = 256 };

/* What lies in memory, in the same places of the device's and the host's. */
enum { Q, K, V, ROTATED, OUT, K_PAGES, V_PAGES, TABLE, STARTS, ARRAYS };

typedef struct layer {
    const options *o;
    staging memory;
    int64_t tokens, page_size, pages;
    workload_array arrays[ARRAYS];
    size_t bytes;
    char *host, *device; /* arrays */
    rope_append_desc append;
    rope_attention_desc attend, alone;
    rope_plan *plans[3]; /* append, attention, rotation of queries for the check */
    void *workspace;
    size_t workspace_bytes;
    double seconds[2][1 + DECODED]; /* of append and attention, of each step */
    check_result checked[2];        /* the prompt's and the decoded tokens' */
} layer;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- set-up --- */

static void lay_out(layer *l) {
    const options *o = l->o;
    const int64_t q = o->q_heads * o->desc.head_dim, k = o->k_heads * o->desc.head_dim;
    const int64_t rows = l->pages * l->page_size;
    const int64_t elements[] = {l->tokens * q, l->tokens * k, l->tokens * k, l->tokens * q,
                                l->tokens * q, rows * k,      rows * k};
    for (int i = Q; i <= V_PAGES; i++)
        l->arrays[i] = workload_take(&l->bytes, o->desc.dtype, elements[i]);
    /* lists of 64 bits each, as elements of double the size of f32 */
    l->arrays[TABLE] = workload_take(&l->bytes, ROPE_F32, 2 * l->pages);
    l->arrays[STARTS] = workload_take(&l->bytes, ROPE_F32, 2 * 2 * (int64_t)(1 + DECODED));
}

static int64_t first_of(const layer *l, int step) {
    return step ? l->o->tokens + step - 1 : 0;
}

static int64_t keys_of(const layer *l, int step) {
    return l->o->tokens + step;
}

static char *at(const layer *l, char *memory, int array) {
    return memory + l->arrays[array].start;
}

/* Of [token, head, dim], behind `first` tokens. */
static char *behind(const layer *l, char *memory, int array, int64_t first) {
    return at(l, memory, array) + (size_t)first * (l->arrays[array].bytes / (size_t)l->tokens);
}

static bool fill(layer *l) {
    const options *o = l->o;
    int64_t *order = placement_pages(&l->memory, l->pages, o->seed);
    l->host = staging_host(&l->memory, "tensors", 1, l->bytes);
    void *device = NULL;
    if (!order || !l->host || !staging_device(&l->memory, l->bytes, &device))
        return false;
    l->device = device;
    for (int i = Q; i <= V; i++)
        workload_fill(o->desc.dtype, at(l, l->host, i), l->arrays[i].bytes, o->seed + i);
    memcpy(at(l, l->host, TABLE), order, (size_t)l->pages * sizeof *order);
    for (int step = 0; step <= DECODED; step++) { /* tokens ahead of a step, and behind it */
        const int64_t both[] = {first_of(l, step), keys_of(l, step)};
        memcpy(at(l, l->host, STARTS) + (size_t)step * sizeof both, both, sizeof both);
    }
    return succeeded(rope_device_copy_in(l->memory.device, device, l->host, l->bytes), "copy in");
}

static bool make_plans(layer *l) {
    const options *o = l->o;
    const rope_append_desc append = ROPE_APPEND_DESC_INIT;
    l->append = append;
    l->attend = o->attends;
    l->attend.struct_size = sizeof l->attend;
    l->append.rope = l->attend.rope = o->desc;
    l->append.rope.position_dtype = l->attend.rope.position_dtype = ROPE_I64;
    l->append.cache = l->attend.cache = ROPE_CACHE_TABLE;
    l->append.page_size = l->attend.page_size = l->page_size;
    l->attend.rotation = ROPE_ATTENTION_ROTATE_Q;
    l->alone = l->attend;
    l->alone.rotation = ROPE_ATTENTION_ROTATE_NONE;
    return succeeded(rope_append_plan_create(&l->append, &l->plans[0]), "append") &&
           succeeded(rope_attention_plan_create(&l->attend, &l->plans[1]), "attention") &&
           succeeded(rope_plan_create(&l->append.rope, &l->plans[2]), "rotation");
}

/* As an engine does: once, for the largest call. */
static bool make_workspace(layer *l) {
    const options *o = l->o;
    const rope_attention_bounds bounds = {.struct_size = sizeof bounds,
                                          .batch = 1,
                                          .tokens = o->tokens,
                                          .k_tokens = l->tokens,
                                          .q_heads = o->q_heads,
                                          .k_heads = o->k_heads};
    void *memory = NULL;
    if (!succeeded(rope_attention_workspace(l->plans[1], &bounds, &l->workspace_bytes),
                   "workspace") ||
        !staging_device(&l->memory, l->workspace_bytes + ALIGNMENT, &memory))
        return false;
    l->workspace = (char *)memory + (ALIGNMENT - (uintptr_t)memory % ALIGNMENT) % ALIGNMENT;
    return true;
}

/* --- steps --- */

static rope_append_args append_on(const layer *l, char *memory, int step) {
    rope_append_args a = ROPE_APPEND_ARGS_INIT;
    a.rope.batch = 1;
    a.rope.tokens = keys_of(l, step) - first_of(l, step);
    a.rope.sequence_offsets = at(l, memory, STARTS) + (size_t)step * 2 * sizeof(int64_t);
    a.rope.k.in = behind(l, memory, K, first_of(l, step));
    a.v.in = behind(l, memory, V, first_of(l, step));
    a.rope.k.heads = a.v.heads = l->o->k_heads;
    a.k_cache.data = at(l, memory, K_PAGES);
    a.v_cache.data = at(l, memory, V_PAGES);
    a.pages = a.table_pages = l->pages;
    a.block_table = at(l, memory, TABLE);
    return a;
}

/* `queries` names the array that they lie in. */
static rope_attention_args attend_on(const layer *l, char *memory, int queries, int step) {
    rope_attention_args a = ROPE_ATTENTION_ARGS_INIT;
    a.rope.batch = 1;
    a.rope.tokens = keys_of(l, step) - first_of(l, step);
    a.rope.q.in = behind(l, memory, queries, first_of(l, step));
    a.rope.q.heads = l->o->q_heads;
    a.rope.k.heads = a.v.heads = l->o->k_heads;
    a.out.data = behind(l, memory, OUT, first_of(l, step));
    a.k_tokens = l->tokens;
    a.k_lengths = at(l, memory, STARTS) + ((size_t)step * 2 + 1) * sizeof(int64_t);
    a.k_cache.data = at(l, memory, K_PAGES);
    a.v_cache.data = at(l, memory, V_PAGES);
    a.pages = a.table_pages = l->pages;
    a.block_table = at(l, memory, TABLE);
    a.workspace = l->workspace;
    a.workspace_bytes = l->workspace_bytes;
    return a;
}

static bool run_step(layer *l, int step) {
    const rope_append_args append = append_on(l, l->device, step);
    const rope_attention_args attend = attend_on(l, l->device, Q, step);
    const double begin = now();
    if (!succeeded(rope_append(l->plans[0], &append), "rope_append") ||
        !succeeded(rope_device_synchronize(l->memory.device), "rope_append"))
        return false;
    const double between = now();
    if (!succeeded(rope_attention(l->plans[1], &attend), "rope_attention") ||
        !succeeded(rope_device_synchronize(l->memory.device), "rope_attention"))
        return false;
    l->seconds[0][step] = between - begin;
    l->seconds[1][step] = now() - between;
    return true;
}

/* --- check --- */

static rope_args rotation_on(const layer *l, char *memory) {
    rope_args a = ROPE_ARGS_INIT;
    a.batch = 1;
    a.tokens = l->tokens;
    a.q = (rope_tensor){.in = at(l, memory, Q), .out = at(l, memory, ROTATED)};
    a.q.heads = l->o->q_heads;
    return a;
}

/* A sample of rotated queries and of keys in pages beside 256-bit arithmetic, and of values in
 * pages beside what was appended. */
static bool compare_inputs(layer *l, check_result *r) {
    const options *o = l->o;
    const int64_t dim = o->desc.head_dim, most = (o->q_heads + o->k_heads) * dim;
    rope_args args = rotation_on(l, l->host);
    const rope_attention_args last = attend_on(l, l->host, ROTATED, DECODED);
    const oracle_attention attention = {&l->alone, &last};
    const oracle_part part = oracle_attention_part(&attention, 0);
    oracle *truth = oracle_create(&l->append.rope);
    double *value = pool_alloc(o->pool, (size_t)most, sizeof *value);
    double *bound = pool_alloc(o->pool, (size_t)most, sizeof *bound);
    args.k = (rope_tensor){.in = at(l, l->host, K), .out = at(l, l->host, K)};
    args.k.heads = o->k_heads;
    for (int64_t n = 0; truth && value && bound && n < ROTATED_ROWS; n++) {
        const int64_t token = n * (l->tokens - 1) / (ROTATED_ROWS - 1);
        for (int tensor = ORACLE_Q; tensor <= ORACLE_V; tensor++) {
            const int64_t heads = tensor == ORACLE_Q ? o->q_heads : o->k_heads;
            if (tensor != ORACLE_V)
                oracle_rotate(truth, &args, tensor, 0, token, value, bound);
            for (int64_t i = 0; i < heads * dim; i++) {
                const int64_t element = token * heads * dim + i;
                oracle_element e = {at(l, l->host, ROTATED), element, o->desc.dtype, NULL, 1};
                if (tensor != ORACLE_Q)
                    e = oracle_attention_at(&attention, &part, tensor, token, i / dim, i % dim);
                const bool copied = tensor == ORACLE_V;
                const check_place place = {tensor, 0, token, i / dim, i % dim};
                check_element(r, o->desc.dtype, &place, oracle_load(e.dtype, e.array, e.at),
                              copied ? oracle_load(e.dtype, at(l, l->host, V), element) : value[i],
                              copied ? 0 : bound[i]);
            }
        }
    }
    oracle_destroy(truth);
    return truth && value && bound;
}

static bool compare_step(layer *l, int step) {
    const rope_attention_args args = attend_on(l, l->host, ROTATED, step);
    attention_rows rows = {
        .o = {&l->alone, &args}, .out = args.out.data, .result = &l->checked[step > 0]};
    for (int64_t head = 0; head < l->o->k_heads && !rows.no_memory; head++)
        attention_compare(&rows, 0, head, PROMPT_ROWS);
    return !rows.no_memory;
}

static bool check(layer *l) {
    const rope_args rotation = rotation_on(l, l->device);
    if (!succeeded(rope_apply(l->plans[2], &rotation), "rope_apply") ||
        !succeeded(rope_device_copy_out(l->memory.device, l->host, l->device, l->bytes),
                   "copy out"))
        return false;
    bool done = compare_inputs(l, &l->checked[0]);
    for (int step = 0; step <= DECODED && done; step++)
        done = compare_step(l, step);
    if (!done)
        message("no memory for the oracle");
    return done;
}

/* --- report --- */

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void add_row(table *t, layer *l, bool decoded, int call) {
    options o = *l->o;
    double *seconds = l->seconds[call] + decoded;
    o.tokens = decoded ? 1 : l->o->tokens;
    o.keys = decoded ? l->tokens - DECODED / 2 : l->o->tokens;
    o.appends.cache = ROPE_CACHE_TABLE;
    qsort(seconds, decoded ? DECODED : 1, sizeof *seconds, ascending);
    const double median = seconds[decoded ? DECODED / 2 : 0];
    table_cell(t, decoded ? "decode" : "prefill");
    table_cell(t, call ? "attention" : "append");
    table_cell(t, "%lld", (long long)o.tokens);
    table_cell(t, "%s", rope_plan_kernel(l->plans[call]));
    table_cell(t, "%s", format_seconds(median).text);
    if (!call)
        table_cell(t, "-");
    else if (decoded)
        table_cell(t, "%.3g GB/s", 2e-9 * (double)attention_tensor_bytes(&o) / median);
    else
        table_cell(t, "%.3g TFLOP/s", 1e-12 * attention_flops(&o) / median);
}

static int64_t print(layer *l, const target *t, FILE *file) {
    const options *o = l->o;
    table rows;
    fprintf(file, "%s: %s, %lld heads of q and %lld of k, of %d\n", o->config, options_dtype(o),
            (long long)o->q_heads, (long long)o->k_heads, o->desc.head_dim);
    fprintf(file, "a prompt of %lld tokens, then %d one by one; pages of %lld tokens\n",
            (long long)o->tokens, DECODED, (long long)l->page_size);
    fprintf(file, "on %s, %s, ropekit %s\n\n", t->info.name,
            format_amount(target_threads(), "thread").text, rope_version());
    table_begin(&rows, "step|call|tokens|kernel|time|reached");
    for (int decoded = 0; decoded < 2; decoded++)
        for (int call = 0; call < 2; call++)
            add_row(&rows, l, decoded, call);
    table_print(&rows, file);
    table_end(&rows);
    const check_result *r = l->checked;
    const int64_t refused = r[0].refused + r[1].refused;
    fprintf(file, "of the prompt one call, of %d steps the median\n\n", DECODED);
    fprintf(file,
            "checked %lld elements of rotated queries and pages against 256-bit arithmetic and of "
            "outputs against double: ",
            (long long)(r[0].elements + r[1].elements));
    if (refused)
        fprintf(file, "FAILED, %lld are wrong\n", (long long)refused);
    else
        fputs("all within their bound\n", file);
    return refused;
}

static int report(layer *l, const target *t) {
    static const char *const names[] = {"prefill", "decode"};
    const options *o = l->o;
    const char *given = options_line(o, "");
    record_list list;
    record_begin(&list, "demo", o, &t->info);
    for (int i = 0; i < 2; i++)
        record_check(record_add(&list, names[i], options_command(o, "demo", given, ""),
                                rope_plan_kernel(l->plans[1])),
                     &l->checked[i]);
    FILE *file = text_open(o->json);
    const int64_t refused = print(l, t, file);
    text_close(file);
    if (!record_end(&list, o))
        return EXIT_ENVIRONMENT;
    return refused ? EXIT_CHECK_FAILED : EXIT_OK;
}

static bool run(layer *l) {
    bool done = make_plans(l) && fill(l) && make_workspace(l);
    for (int step = 0; step <= DECODED && done; step++)
        done = run_step(l, step);
    return done && check(l);
}

int demo_attention(options *o, const target *t) {
    layer *l = pool_alloc(o->pool, 1, sizeof *l);
    if (!l || o->batch != 1 || o->tokens == 0 || o->q_heads == 0 || o->k_heads == 0) {
        message("nothing was checked; allowed with --attention is batch 1, and tokens, q-heads and "
                "k-heads >= 1");
        return EXIT_ENVIRONMENT;
    }
    if (o->appends.v_head_dim || o->appends.cache || o->attends.rotation) {
        message(
            "--v-head-dim, --kv-cache or --rotate is given; allowed in demo --attention is none");
        return EXIT_ENVIRONMENT;
    }
    *l = (layer){.o = o, .memory.device = t->device, .tokens = o->tokens + DECODED};
    l->page_size = attention_page_size(o);
    l->pages = (l->tokens + l->page_size - 1) / l->page_size;
    lay_out(l);
    const int status = run(l) ? report(l, t) : EXIT_ENVIRONMENT;
    for (int i = 0; i < 3; i++)
        rope_plan_destroy(l->plans[i]);
    staging_release(&l->memory);
    return status;
}
