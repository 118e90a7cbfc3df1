/* Decoding over a paged cache, on whatever backend ROPE_BACKEND names: the prompts of two
 * sequences one by one, then tokens of both together. All tokens of a sequence in one step give the
 * same within rounding. */
#include <ropekit/decode.h>

enum { Q_HEADS = 4, K_HEADS = 2, HEAD_DIM = 64, PAGE = 4 };

/* In device memory: pages of [PAGE, K_HEADS, HEAD_DIM]; of each sequence a row of table_pages
 * pages, and how many tokens it has behind a step. */
typedef struct paged {
    rope_plan *plan;
    void *k_pages, *v_pages, *workspace;
    const int64_t *table, *lengths;
    int64_t pages, table_pages;
    size_t workspace_bytes;
} paged;

rope_status make_plan(rope_plan **plan) {
    rope_decode_desc desc = ROPE_DECODE_DESC_INIT;
    desc.append.rope.dtype = ROPE_F32, desc.append.rope.head_dim = HEAD_DIM;
    desc.append.cache = ROPE_CACHE_TABLE, desc.append.page_size = PAGE;
    return rope_decode_plan_create(&desc, plan);
}

/* So many new tokens of each sequence. Tensors are contiguous [sequences, tokens, heads, dim]. */
rope_status step(const paged *p, int64_t sequences, int64_t tokens, const float *q, const float *k,
                 const float *v, float *out) {
    rope_decode_args args = ROPE_DECODE_ARGS_INIT;
    rope_append_args *a = &args.append;
    a->rope.batch = sequences, a->rope.tokens = tokens;
    a->rope.q.in = q, a->rope.q.heads = Q_HEADS;
    a->rope.k.in = k, a->v.in = v, a->rope.k.heads = a->v.heads = K_HEADS;
    a->k_cache.data = p->k_pages, a->v_cache.data = p->v_pages, a->pages = p->pages;
    a->block_table = p->table, a->table_pages = p->table_pages;
    a->rope.sequence_offsets = args.k_lengths = p->lengths;
    a->rope.position_offset = -tokens; /* the new ones are the last of each sequence */
    args.out.data = out;
    args.workspace = p->workspace, args.workspace_bytes = p->workspace_bytes;
    return rope_decode(p->plan, &args);
}

/* --- two sequences --- */

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { SEQUENCES = 2, TOKENS = 12, DECODED = 4, PAGES = 8, OF_EACH = TOKENS / PAGE };
enum { Q = Q_HEADS * HEAD_DIM, K = K_HEADS * HEAD_DIM };

/* Device memory: what a step reads, what it writes, the cache. */
typedef struct memory {
    float q[TOKENS][Q], k[TOKENS][K], v[TOKENS][K];
    int64_t table[SEQUENCES][OF_EACH], lengths[SEQUENCES];
    float out[TOKENS][Q];
    float k_pages[PAGES][PAGE][K], v_pages[PAGES][PAGE][K];
} memory;

typedef struct engine {
    rope_device *device;
    memory *on_device;
    paged cache;
} engine;

static int failed(rope_status status, const char *what) {
    if (status != ROPE_OK)
        fprintf(stderr, "%s: %s: %s\n", what, rope_status_string(status), rope_last_error());
    return status != ROPE_OK;
}

static int make_engine(engine *e) {
    const rope_attention_bounds most = {sizeof most, SEQUENCES, TOKENS, TOKENS,
                                        0,           Q_HEADS,   K_HEADS};
    paged *p = &e->cache;
    void *memory_at = NULL;
    const int bad =
        failed(rope_device_open(NULL, 0, &e->device), "open") ||
        failed(make_plan(&p->plan), "plan") ||
        failed(rope_decode_workspace(p->plan, &most, &p->workspace_bytes), "workspace") ||
        failed(rope_device_alloc(e->device, p->workspace_bytes, &p->workspace), "alloc") ||
        failed(rope_device_alloc(e->device, sizeof(memory), &memory_at), "alloc");
    if (bad)
        return 1;
    e->on_device = (memory *)memory_at;
    p->k_pages = e->on_device->k_pages, p->v_pages = e->on_device->v_pages;
    p->pages = PAGES, p->table_pages = OF_EACH;
    return 0;
}

static void free_engine(engine *e) {
    rope_plan_destroy(e->cache.plan);
    if (e->device) {
        rope_device_free(e->device, e->cache.workspace);
        rope_device_free(e->device, e->on_device);
    }
    rope_device_close(e->device);
}

/* Element i of token t of sequence s. */
static float element(int s, int t, int i) {
    return (float)((s * 53 + t * 17 + i * 37) % 64 - 31) / 16;
}

/* A step of n sequences from s on, which have `cached` tokens. */
static int run(const engine *e, int s, int n, const int *cached, int tokens,
               float out[][TOKENS][Q]) {
    static const int64_t table[SEQUENCES][OF_EACH] = {{3, 0, 6}, {1, 7, 2}};
    static memory host;
    memory *d = e->on_device;
    memcpy(host.table, table, sizeof table);
    for (int i = 0, row = 0; i < n; i++) {
        host.lengths[s + i] = cached[s + i] + tokens;
        for (int t = cached[s + i]; t < cached[s + i] + tokens; t++, row++) {
            for (int x = 0; x < Q; x++)
                host.q[row][x] = element(s + i, t, x);
            for (int x = 0; x < K; x++)
                host.k[row][x] = element(s + i, t, x + Q), host.v[row][x] = element(s + i, t, -x);
        }
    }
    paged p = e->cache;
    p.table = d->table[s], p.lengths = d->lengths + s;
    if (failed(rope_device_copy_in(e->device, d, &host, offsetof(memory, out)), "copy in") ||
        failed(step(&p, n, tokens, d->q[0], d->k[0], d->v[0], d->out[0]), "step") ||
        failed(rope_device_copy_out(e->device, host.out, d->out, sizeof host.out), "copy out"))
        return 1;
    for (int i = 0; i < n; i++)
        memcpy(out[s + i][cached[s + i]], host.out[i * tokens], sizeof(float) * Q * (size_t)tokens);
    return 0;
}

/* Each sequence alone up to its first tokens, then both together, one token a step. */
static int decode(const engine *e, const int *first, int more, float out[][TOKENS][Q]) {
    const int none[SEQUENCES] = {0};
    int cached[SEQUENCES], bad = 0;
    for (int s = 0; s < SEQUENCES && !bad; s++)
        bad = run(e, s, 1, none, cached[s] = first[s], out);
    for (int i = 0; i < more && !bad; i++) {
        bad = run(e, 0, SEQUENCES, cached, 1, out);
        for (int s = 0; s < SEQUENCES; s++)
            cached[s]++;
    }
    return bad;
}

int main(void) {
    static float decoded[SEQUENCES][TOKENS][Q], at_once[SEQUENCES][TOKENS][Q];
    const int prompts[SEQUENCES] = {5, 8}, all[SEQUENCES] = {5 + DECODED, 8 + DECODED};
    const float *a = decoded[0][0], *b = at_once[0][0];
    float most = 0;
    static engine e;
    int bad =
        make_engine(&e) || decode(&e, prompts, DECODED, decoded) || decode(&e, all, 0, at_once);
    for (int i = 0; i < SEQUENCES * TOKENS * Q; i++)
        most = a[i] - b[i] > most ? a[i] - b[i] : b[i] - a[i] > most ? b[i] - a[i] : most;
    if (!bad && (!(most < 1e-5F) || a[0] == 0)) {
        fprintf(stderr, "token by token is %g away from one step\n", (double)most);
        bad = 1;
    }
    if (!bad)
        printf("%d tokens of each of %d sequences decoded by %s: within %.1e of one step\n",
               DECODED, SEQUENCES, rope_plan_kernel(e.cache.plan), (double)most);
    free_engine(&e);
    return bad;
}
