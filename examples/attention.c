/* Attention of one layer with a paged cache: a prompt, then some tokens one by one. rope_append
 * rotates keys and writes them and the values into pages, rope_attention rotates queries and
 * attends, on whatever backend ROPE_BACKEND names. The same attention in one call over all tokens,
 * with keys that it rotates itself, agrees within rounding. */
#include <ropekit/attention.h>

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { PROMPT = 5, TOKENS = 12, Q_HEADS = 4, K_HEADS = 2, HEAD_DIM = 64 };
enum { PAGE = 4, PAGES = 8, Q = Q_HEADS * HEAD_DIM, K = K_HEADS * HEAD_DIM };

/* The layer in device memory. */
typedef struct layer {
    float q[TOKENS][Q], k[TOKENS][K], v[TOKENS][K], out[TOKENS][Q];
    float k_pages[PAGES][PAGE][K], v_pages[PAGES][PAGE][K];
    int64_t table[PAGES]; /* pages of the sequence, dealt out by the engine */
    int64_t cached;       /* tokens that are cached already */
    int64_t keys;         /* those and the tokens of a step */
} layer;

static int failed(rope_status status, const char *what) {
    if (status != ROPE_OK)
        fprintf(stderr, "%s: %s: %s\n", what, rope_status_string(status), rope_last_error());
    return status != ROPE_OK;
}

typedef struct plans {
    rope_plan *append, *attend, *at_once;
} plans;

static int make_plans(plans *p) {
    rope_append_desc append = ROPE_APPEND_DESC_INIT;
    rope_attention_desc attend = ROPE_ATTENTION_DESC_INIT, at_once;
    append.rope.dtype = attend.rope.dtype = ROPE_F32;
    append.rope.head_dim = attend.rope.head_dim = HEAD_DIM;
    at_once = attend; /* rotates queries and keys, which lie in tensors */
    append.cache = attend.cache = ROPE_CACHE_TABLE;
    append.page_size = attend.page_size = PAGE;
    attend.rotation = ROPE_ATTENTION_ROTATE_Q; /* keys in pages are rotated */
    return failed(rope_append_plan_create(&append, &p->append), "append plan") ||
           failed(rope_attention_plan_create(&attend, &p->attend), "attention plan") ||
           failed(rope_attention_plan_create(&at_once, &p->at_once), "attention plan");
}

/* Rotates keys first..last - 1 and writes them and their values into pages. */
static int append(const rope_plan *plan, layer *l, int first, int last) {
    rope_append_args args = ROPE_APPEND_ARGS_INIT;
    args.rope.batch = 1;
    args.rope.tokens = last - first;
    args.rope.sequence_offsets = &l->cached; /* of positions and of places in the cache */
    args.rope.k.in = l->k[first];
    args.v.in = l->v[first];
    args.rope.k.heads = args.v.heads = K_HEADS;
    args.k_cache.data = l->k_pages;
    args.v_cache.data = l->v_pages;
    args.pages = args.table_pages = PAGES;
    args.block_table = l->table;
    return failed(rope_append(plan, &args), "append");
}

/* An engine asks once, for the largest call, and keeps the memory. */
static int with_workspace(rope_device *device, const rope_plan *plan, rope_attention_args *args) {
    rope_attention_bounds bounds = {sizeof bounds, 1, TOKENS, PAGES * PAGE, 0, Q_HEADS, K_HEADS};
    void *workspace = NULL;
    int bad =
        failed(rope_attention_workspace(plan, &bounds, &args->workspace_bytes), "workspace") ||
        failed(rope_device_alloc(device, args->workspace_bytes + 256, &workspace), "alloc");
    if (!bad) {
        args->workspace = (char *)workspace + (256 - (uintptr_t)workspace % 256) % 256;
        bad = failed(rope_attention(plan, args), "attention") ||
              failed(rope_device_synchronize(device), "synchronize");
    }
    rope_device_free(device, workspace);
    return bad;
}

static rope_attention_args queries(layer *l, int first, int last) {
    rope_attention_args args = ROPE_ATTENTION_ARGS_INIT;
    args.rope.batch = 1;
    args.rope.tokens = last - first;
    args.rope.q.in = l->q[first];
    args.rope.q.heads = Q_HEADS;
    args.rope.k.heads = args.v.heads = K_HEADS;
    args.out.data = l->out[first];
    return args;
}

/* Queries first..last - 1 are the last of as many keys as the pages have: positions follow. */
static int attend(rope_device *device, const rope_plan *plan, layer *l, int first, int last) {
    rope_attention_args args = queries(l, first, last);
    args.k_lengths = &l->keys;
    args.k_cache.data = l->k_pages;
    args.v_cache.data = l->v_pages;
    args.pages = args.table_pages = PAGES;
    args.block_table = l->table;
    return with_workspace(device, plan, &args);
}

static int attend_at_once(rope_device *device, const rope_plan *plan, layer *l) {
    rope_attention_args args = queries(l, 0, TOKENS);
    args.rope.k.in = l->k;
    args.v.in = l->v;
    return with_workspace(device, plan, &args);
}

static void fill(layer *l) {
    static const int64_t table[PAGES] = {3, 0, 6, 1, 2, 4, 5, 7};
    float *x = &l->q[0][0];
    memset(l, 0, sizeof *l);
    for (int i = 0; i < TOKENS * (Q + 2 * K); i++)
        x[i] = (float)((i * 37) % 64 - 31) / 16;
    memcpy(l->table, table, sizeof table);
}

/* The prompt, then token by token. */
static int decode(rope_device *device, const plans *p, layer *l) {
    for (int t = 0, next; t < TOKENS; t = next) {
        next = t == 0 ? PROMPT : t + 1;
        const int64_t step[2] = {t, next};
        if (failed(rope_device_copy_in(device, &l->cached, step, sizeof step), "copy in") ||
            append(p->append, l, t, next) || attend(device, p->attend, l, t, next))
            return 1;
    }
    return 0;
}

static float largest_difference(const layer *a, const layer *b) {
    float most = 0;
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < Q; i++) {
            const float d = a->out[t][i] - b->out[t][i];
            most = d > most ? d : -d > most ? -d : most;
        }
    return most;
}

int main(void) {
    static layer decoded, at_once;
    rope_device *device = NULL;
    plans p = {NULL, NULL, NULL};
    void *memory = NULL;
    fill(&decoded);
    int bad = failed(rope_device_open(NULL, 0, &device), "open") || make_plans(&p) ||
              failed(rope_device_alloc(device, sizeof decoded, &memory), "alloc") ||
              failed(rope_device_copy_in(device, memory, &decoded, sizeof decoded), "copy in") ||
              decode(device, &p, (layer *)memory) ||
              failed(rope_device_copy_out(device, &decoded, memory, sizeof decoded), "copy out") ||
              attend_at_once(device, p.at_once, (layer *)memory) ||
              failed(rope_device_copy_out(device, &at_once, memory, sizeof at_once), "copy out");
    const float difference = bad ? 0 : largest_difference(&decoded, &at_once);
    if (!(difference < 1e-5F)) {
        fprintf(stderr, "token by token is %g away from one call\n", (double)difference);
        bad = 1;
    }
    if (!bad)
        printf("%d tokens of %d heads attended by %s, %d of them one by one: within %.1e of one "
               "call\n",
               TOKENS, Q_HEADS, rope_plan_kernel(p.attend), TOKENS - PROMPT, (double)difference);
    rope_plan_destroy(p.append);
    rope_plan_destroy(p.attend);
    rope_plan_destroy(p.at_once);
    if (device)
        rope_device_free(device, memory);
    rope_device_close(device);
    return bad;
}
