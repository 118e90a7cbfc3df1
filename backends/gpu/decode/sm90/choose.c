/* Which calls take the kernel that decodes in one launch, and what memory they need. */
#include "backends/gpu/decode/sm90/choose.h"

#include "backends/gpu/geometry.h"
#include "common/math/attention.h"

enum { CHUNK = SM90_DECODE_CHUNK, MOST = GPU_DECODE_SM90_MOST };

/* Chunks of a split, of heads of 128 elements: shorter ones make one sequence faster, and cost many
 * sequences more joins, of as many rows as a key head has heads of queries. */
enum { LEAST_CHUNKS = 16, LEAST_CHUNKS_OF_MANY = 32, FEW_HEADS = 4 };

/* Most rows of a key head, key heads, and chunks of a sequence. */
enum { MOST_ROWS = SM90_DECODE_ROWS * SM90_DECODE_BANDS, MOST_HEADS = 4096, MOST_CHUNKS = 1 << 20 };

/* --- numbers --- */

/* Whether numbers up to `most` are divided by n exactly through its reciprocal. */
static int divides(int64_t n, int64_t most) {
    const uint64_t beyond = ((uint64_t)gpu_decode_sm90_reciprocal(n) * (uint64_t)n) & UINT32_MAX;
    return most <= UINT32_MAX / (int64_t)(beyond ? beyond : 1);
}

/* --- problems --- */

static int are_cached_alike(const rope_decode_problem *p) {
    const rope_append_steps *k = &p->append->steps[ROPE_APPEND_K],
                            *v = &p->append->steps[ROPE_APPEND_V];
    const int32_t codes = gpu_decode_sm90_store(p);
    return k->store_dtype == v->store_dtype && k->scale == v->scale &&
           (codes ? codes == ROPE_F8E4M3 || codes == ROPE_F8E5M2 || codes == ROPE_I8
                  : k->scale == 0);
}

static int is_ring(int64_t ring) {
    return ring % CHUNK == 0 && ring >= 2 * CHUNK && ring <= (int64_t)MOST_CHUNKS * CHUNK &&
           divides(ring / CHUNK, MOST / CHUNK);
}

const char *gpu_decode_sm90_decline(const rope_decode_problem *problem) {
    const rope_append_problem *a = problem->append;
    const rope_attention_problem *t = problem->attention;
    const char *declined = gpu_decode_decline(problem);
    if (declined)
        return declined;
    if (!are_cached_alike(problem))
        return "declined: k and v are not cached alike, in dtype, f8e4m3, f8e5m2 or i8";
    if (t->cache == ROPE_CACHE_TABLE && a->page_size % CHUNK)
        return "declined: pages are not of a multiple of 16 tokens";
    if (a->ring && !is_ring(a->ring))
        return "declined: the ring is of fewer than 32 tokens, or of chunks of 16 by whose number "
               "an index is not divided exactly";
    if (gpu_decode_sm90_spans(t) && !divides(t->chunk, MOST))
        return "declined: an index is not divided exactly by the chunk";
    return NULL;
}

/* --- sizes --- */

static int64_t most_splits(int64_t k_heads, int multiprocessors) {
    const int64_t most = gpu_at_most(multiprocessors / k_heads, SM90_DECODE_SPLITS);
    return most > 1 ? most : 1;
}

int64_t gpu_decode_sm90_least_chunks(const gpu_decode_sizes *s) {
    const int64_t least = s->q_heads > FEW_HEADS * s->k_heads ? LEAST_CHUNKS_OF_MANY : LEAST_CHUNKS;
    return least * SM90_DECODE_DIM_OF(1) / s->dim;
}

int64_t gpu_decode_sm90_splits(const gpu_decode_sizes *s, int multiprocessors) {
    const int64_t whole = gpu_divide_up(s->k_tokens, CHUNK) / gpu_decode_sm90_least_chunks(s);
    int64_t splits = 1;
    while (2 * splits <= whole)
        splits *= 2;
    return gpu_at_most(splits, most_splits(s->k_heads * gpu_decode_sm90_bands(s), multiprocessors));
}

int64_t gpu_decode_sm90_bands(const gpu_decode_sizes *s) {
    return gpu_divide_up(s->tokens * (s->q_heads / s->k_heads), SM90_DECODE_ROWS);
}

static int fits_sizes(const gpu_decode_sizes *s) {
    const int64_t group = s->k_heads ? s->q_heads / s->k_heads : 0;
    return group >= 1 && s->tokens >= 1 && s->tokens <= SM90_DECODE_TOKENS &&
           s->tokens * group <= MOST_ROWS && s->sequences >= 1 && s->sequences <= 65536 &&
           s->k_heads <= MOST_HEADS &&
           s->k_heads <= MOST / SM90_DECODE_SPLITS / SM90_DECODE_BANDS / s->sequences;
}

int gpu_decode_sm90_is_dense(const gpu_decode_sizes *s) {
    return s->all < s->sequences * s->tokens;
}

static size_t rounded(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

void gpu_decode_sm90_layout(const gpu_decode_sizes *s, int multiprocessors, size_t bytes[3]) {
    const int64_t tokens = gpu_decode_sm90_is_dense(s) ? s->all : s->sequences * s->tokens;
    const size_t rows = (size_t)(tokens * (s->q_heads / s->k_heads) * s->k_heads),
                 splits = (size_t)gpu_decode_sm90_splits(s, multiprocessors),
                 parts = splits > 1 ? splits * rows : 0,
                 bands = (size_t)(s->sequences * s->k_heads * gpu_decode_sm90_bands(s)),
                 counters = bands * SM90_DECODE_HELPERS;
    bytes[0] = rounded(splits > 1 ? counters * 8 : 0);
    bytes[1] = rounded(parts * 8);
    bytes[2] = parts * (size_t)s->dim * 4;
}

/* Of calls of these sizes, or of fewer sequences, tokens and keys. */
static size_t workspace_within(const gpu_decode_sizes *given, int multiprocessors) {
    const int64_t group = given->k_heads ? given->q_heads / given->k_heads : 0;
    gpu_decode_sizes sizes = *given;
    size_t most = 0;
    if (group < 1 || group > MOST_ROWS)
        return 0;
    /* fewer tokens have fewer bands, and may have more splits */
    for (int64_t tokens = gpu_at_most(SM90_DECODE_TOKENS, MOST_ROWS / group); tokens > 0;
         tokens--) {
        size_t bytes[3];
        sizes.tokens = gpu_at_most(given->tokens, tokens);
        if (!fits_sizes(&sizes))
            return 0;
        gpu_decode_sm90_layout(&sizes, multiprocessors, bytes);
        const size_t all = bytes[0] + bytes[1] + bytes[2];
        most = all > most ? all : most;
    }
    return most;
}

/* --- calls --- */

static int64_t capacity_of(const rope_decode_problem *p, const rope_attention_call *call) {
    const int64_t size = p->attention->page_size;
    if (call->table_pages > call->k_tokens / size)
        return call->k_tokens;
    return gpu_at_most(call->table_pages * size, call->k_tokens);
}

gpu_decode_sizes gpu_decode_sm90_sizes(const rope_decode_problem *p, const rope_decode_call *call) {
    const rope_append_call *a = &call->append;
    const rope_position_map *map = &a->rope.position;
    return (gpu_decode_sizes){map->cu_seqlens ? map->sequences : a->rope.batch,
                              call->most_tokens,
                              capacity_of(p, &call->attention),
                              a->tensor[ROPE_APPEND_Q].heads,
                              a->tensor[ROPE_APPEND_K].heads,
                              a->rope.batch * a->rope.tokens,
                              gpu_decode_dim(p)};
}

/* Whether heads lie in words of so many elements. */
static int in_words(const void *data, const int64_t stride[4], int64_t elements) {
    return data && (uintptr_t)data % (2 * elements) == 0 && stride[3] == 1 &&
           stride[0] % elements == 0 && stride[1] % elements == 0 && stride[2] % elements == 0;
}

static int fits_heads(const rope_append_operand *o) {
    return in_words(o->in, o->in_stride, 2) && !o->out && !o->weight_stride &&
           (uintptr_t)o->weight % 4 == 0;
}

static int fits_cache(const rope_decode_problem *p, const rope_append_operand *o) {
    const int64_t *given = o->cache_stride, stride[4] = {given[0], given[1], given[2], given[4]};
    return in_words(o->cache, stride, gpu_decode_sm90_store(p) ? 16 : 8);
}

/* Each band reads all keys: many are slower than tiles of all rows, which take long where sequences
 * are packed. */
static int are_few(const gpu_decode_sizes *s, int packed, int multiprocessors) {
    const int64_t bands = gpu_decode_sm90_bands(s);
    return bands == 1 ||
           2 * bands * s->k_heads * s->sequences <= (packed ? 16 : 3) * multiprocessors;
}

int gpu_decode_sm90_fits(const rope_decode_problem *p, const rope_decode_call *call,
                         int multiprocessors) {
    const rope_append_call *a = &call->append;
    const rope_attention_call *t = &call->attention;
    const gpu_decode_sizes sizes = gpu_decode_sm90_sizes(p, call);
    const int64_t size = p->attention->page_size, page_chunks = gpu_divide_up(size, CHUNK);
    if (!fits_sizes(&sizes) || t->tree_keys > MOST || !gpu_decode_fits_table(p, call) ||
        a->tensor[ROPE_APPEND_V].heads != sizes.k_heads)
        return 0;
    if (a->rope.tokens > MOST ||
        !are_few(&sizes, a->rope.position.cu_seqlens != NULL, multiprocessors))
        return 0;
    if (sizes.k_tokens > (int64_t)MOST_CHUNKS * CHUNK || t->table_pages > MOST / size ||
        t->pages > MOST / (page_chunks * CHUNK) ||
        !divides(page_chunks,
                 page_chunks * (t->pages > t->table_pages ? t->pages : t->table_pages)))
        return 0;
    for (int i = 0; i < (gpu_decode_sm90_appends(call) ? ROPE_APPEND_TENSORS : 1); i++)
        if (!fits_heads(&a->tensor[i]))
            return 0;
    return fits_cache(p, &a->tensor[ROPE_APPEND_K]) && fits_cache(p, &a->tensor[ROPE_APPEND_V]) &&
           in_words(t->out, t->out_stride, 4);
}

size_t gpu_decode_sm90_workspace(const rope_decode_problem *p, const rope_attention_bounds *b,
                                 int multiprocessors) {
    const gpu_decode_sizes sizes = {b->sequences > b->batch ? b->sequences : b->batch,
                                    b->tokens,
                                    b->k_tokens,
                                    b->q_heads,
                                    b->k_heads,
                                    b->batch * b->tokens,
                                    gpu_decode_dim(p)};
    return workspace_within(&sizes, multiprocessors);
}

size_t gpu_decode_sm90_workspace_of(const rope_decode_problem *p, const rope_decode_call *call,
                                    int multiprocessors) {
    const gpu_decode_sizes sizes = gpu_decode_sm90_sizes(p, call);
    size_t bytes[3];
    gpu_decode_sm90_layout(&sizes, multiprocessors, bytes);
    return bytes[0] + bytes[1] + bytes[2];
}
