/* A prompt, then some tokens one by one, through two layers with a paged cache: norm of q and k,
 * rotation and the write of k and v in one call a layer, on whatever backend ROPE_BACKEND names.
 * The pages are then those of all tokens in one call, byte for byte. */
#include <ropekit/append.h>

enum { Q_HEADS = 4, K_HEADS = 2, HEAD_DIM = 64, PAGE = 4 };

/* In device memory are pages of [PAGE, K_HEADS, HEAD_DIM], and of each sequence a row of
 * table_pages pages, and how many tokens it has in them ahead of a call. */
typedef struct paged {
    void *k_pages, *v_pages;
    const int64_t *table, *before;
    int64_t pages, table_pages;
} paged;

rope_status make_plan(rope_plan **plan) {
    rope_append_desc desc = ROPE_APPEND_DESC_INIT;
    desc.rope.dtype = ROPE_F32, desc.rope.head_dim = HEAD_DIM;
    desc.q.norm.type = ROPE_NORM_RMS, desc.q.norm.eps = 1e-6; /* as Qwen3 */
    desc.q.norm.weight = ROPE_NORM_WEIGHT, desc.q.norm.rounding = ROPE_NORM_ROUND_TWICE;
    desc.k.norm = desc.q.norm;
    desc.cache = ROPE_CACHE_TABLE, desc.page_size = PAGE;
    return rope_append_plan_create(&desc, plan);
}

/* So many new tokens of each sequence. q stays where it is, k and v go to the cache. */
rope_status append(const rope_plan *plan, const paged *p, int64_t sequences, int64_t tokens,
                   float *q, const float *k, const float *v, const float *weight) {
    rope_append_args args = ROPE_APPEND_ARGS_INIT;
    args.rope.batch = sequences, args.rope.tokens = tokens;
    args.rope.sequence_offsets = p->before; /* position, and place in the cache, of the first */
    args.rope.q.in = args.rope.q.out = q, args.rope.q.heads = Q_HEADS;
    args.rope.k.in = k, args.v.in = v;
    args.rope.k.heads = args.v.heads = K_HEADS;
    args.q_weight.data = args.k_weight.data = weight;
    args.k_cache.data = p->k_pages, args.v_cache.data = p->v_pages, args.pages = p->pages;
    args.block_table = p->table, args.table_pages = p->table_pages;
    return rope_append(plan, &args);
}

/* --- two layers --- */

#include <stdio.h>
#include <string.h>

enum { LAYERS = 2, PROMPT = 5, TOKENS = 12, PAGES = 8 };
enum { Q = Q_HEADS * HEAD_DIM, K = K_HEADS * HEAD_DIM };

/* One layer in device memory. */
typedef struct layer {
    float q[TOKENS][Q], k[TOKENS][K], v[TOKENS][K], weight[HEAD_DIM];
    float k_pages[PAGES][PAGE][K], v_pages[PAGES][PAGE][K];
} layer;

/* What a step changes: an engine writes it ahead of each one. */
typedef struct step {
    int64_t table[PAGES]; /* pages of the sequence, dealt out by the engine */
    int64_t before;       /* tokens that are cached already */
} step;

static int failed(rope_status status, const char *what) {
    if (status != ROPE_OK)
        fprintf(stderr, "%s: %s: %s\n", what, rope_status_string(status), rope_last_error());
    return status != ROPE_OK;
}

/* Appends tokens first..last - 1 to a layer whose memory is the device's. */
static int append_to(rope_device *device, const rope_plan *plan, layer *l, step *on_device,
                     int first, int last) {
    const step now = {{3, 0, 6, 1, 2, 4, 5, 7}, first};
    const paged p = {l->k_pages, l->v_pages, on_device->table, &on_device->before, PAGES, PAGES};
    return failed(rope_device_copy_in(device, on_device, &now, sizeof now), "copy in") ||
           failed(
               append(plan, &p, 1, last - first, l->q[first], l->k[first], l->v[first], l->weight),
               "append") ||
           failed(rope_device_synchronize(device), "synchronize");
}

static void fill(layer *l, int index) {
    float *x = &l->q[0][0];
    memset(l, 0, sizeof *l);
    for (int i = 0; i < TOKENS * (Q + 2 * K) + HEAD_DIM; i++)
        x[i] = (float)((i * 37 + index * 11) % 64 - 31) / 16;
}

/* Runs the layers over the prompt and the tokens behind it, or over all tokens at once. */
static int run(rope_device *device, const rope_plan *plan, layer *on_device, step *steps,
               layer *host, int prompt) {
    for (int i = 0; i < LAYERS; i++) {
        fill(&host[i], i);
        if (failed(rope_device_copy_in(device, &on_device[i], &host[i], sizeof host[i]), "copy in"))
            return 1;
    }
    for (int t = 0, next; t < TOKENS; t = next) {
        next = t == 0 ? prompt : t + 1;
        for (int i = 0; i < LAYERS; i++)
            if (append_to(device, plan, &on_device[i], steps, t, next))
                return 1;
    }
    return failed(rope_device_copy_out(device, host, on_device, LAYERS * sizeof *host), "copy out");
}

int main(void) {
    static layer decoded[LAYERS], at_once[LAYERS];
    rope_device *device = NULL;
    rope_plan *plan = NULL;
    void *layers = NULL, *steps = NULL;
    int bad = failed(rope_device_open(NULL, 0, &device), "open") ||
              failed(rope_device_alloc(device, sizeof decoded, &layers), "alloc") ||
              failed(rope_device_alloc(device, sizeof(step), &steps), "alloc") ||
              failed(make_plan(&plan), "plan") ||
              run(device, plan, (layer *)layers, (step *)steps, decoded, PROMPT) ||
              run(device, plan, (layer *)layers, (step *)steps, at_once, TOKENS);
    if (!bad && memcmp(decoded, at_once, sizeof decoded) != 0) {
        fprintf(stderr, "token by token is not what one call gives\n");
        bad = 1;
    }
    if (!bad)
        printf("%d tokens of %d layers appended by %s: k[0] of token %d is %+.6f\n", TOKENS, LAYERS,
               rope_plan_kernel(plan), TOKENS - 1, decoded[0].k_pages[6][3][0]);
    rope_plan_destroy(plan);
    if (device) {
        rope_device_free(device, steps);
        rope_device_free(device, layers);
    }
    rope_device_close(device);
    return bad;
}
