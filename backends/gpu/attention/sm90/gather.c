/* Which calls gather keys and values of pages, and that launch. */
#include "backends/gpu/attention/kernels.h"
#include "backends/gpu/attention/sm90/kernels.h"
#include "backends/gpu/candidate.h"
#include "backends/gpu/geometry.h"
#include "common/math/attention.h"

#include <string.h>

/* Rows of queries of a key head, of all sequences together, from which it pays to gather keys of
 * pages that copies take so many keys of, or fewer; and of any pages. */
enum { GATHER_ROWS = 1024, GATHER_PAGE = 32, GATHER_ROWS_OF_ANY = 16384 };

/* Blocks that convert on a multiprocessor: fewer begin in vain than there are tiles of few queries.
 */
enum { CONVERTERS = 16 };

int sm90_converts(const rope_attention_problem *p) {
    return p->cache && (p->k.store_dtype != p->rope.dtype || p->v.store_dtype != p->rope.dtype);
}

static int pays(const rope_attention_problem *p, double rows) {
    return p->cache == ROPE_CACHE_TABLE &&
           rows >= (sm90_page_of(p) <= GATHER_PAGE ? GATHER_ROWS : GATHER_ROWS_OF_ANY);
}

/* Smaller calls may have fewer heads of k, hence more rows of each, and larger parts. */
size_t gpu_sm90_gathered(const rope_attention_problem *p, const gpu_attention_sizes *s) {
    const double head = sm90_gathered_head(p, s),
                 all = head * (double)s->k_heads * (double)s->sequences,
                 most = sm90_converts(p) && head > SM90_GATHER_MOST ? head : SM90_GATHER_MOST;
    return !sm90_converts(p) && !pays(p, (double)s->tokens * (double)s->q_heads) ? 0
           : all < most                                                          ? (size_t)all
                                                                                 : (size_t)most;
}

int sm90_gathers(const rope_attention_problem *p, const rope_attention_call *call) {
    const gpu_attention_sizes s = gpu_attention_sizes_of(p, call);
    const int64_t shares = s.k_heads > 0 ? s.q_heads / s.k_heads : 0;
    const double bytes = sm90_gathered_head(p, &s) * (double)s.k_heads * (double)s.sequences;
    const int varies = call->rope.position.cu_seqlens || call->q_lengths;
    return sm90_converts(p)
               ? !varies || bytes <= SM90_GATHER_MOST
               : pays(p, (double)s.tokens * (double)shares) && bytes <= SM90_GATHER_MOST;
}

static sm90_gathered rows_of(const rope_attention_call *call, rope_append_operand *o, int32_t dim,
                             void *data) {
    const int64_t stride[5] = {call->k_tokens * o->heads * dim, o->heads * dim, dim, dim, 1};
    o->cache = data;
    memcpy(o->cache_stride, stride, sizeof stride);
    return (sm90_gathered){data, call->k_tokens};
}

gpuError_t sm90_launch_gather(const gpu_sm90_call *l, rope_attention_call *rows) {
    const rope_attention_problem *p = l->problem;
    const gpu_attention_sizes s = gpu_attention_sizes_of(p, l->call);
    int few = l->leaves_few ? GPU_SPLIT_ROWS : 0, tile = sm90_keys_of_tile(p);
    sm90_gathered keys = rows_of(rows, &rows->k, p->head_dim, l->memory.gathered),
                  values = rows_of(rows, &rows->v, p->v_head_dim,
                                   (char *)l->memory.gathered +
                                       2 * p->head_dim * s.k_heads * s.sequences * s.k_tokens);
    void *arguments[] = {(void *)(uintptr_t)p,
                         (void *)(uintptr_t)l->call,
                         (void *)(uintptr_t)&l->memory.failed,
                         &few,
                         &tile,
                         &keys,
                         &values};
    const int converts = sm90_converts(p);
    const int64_t tiles = s.sequences * gpu_divide_up(s.k_tokens, SM90_GATHERED),
                  most = converts ? CONVERTERS * l->multiprocessors : INT32_MAX;
    const dim3 grid = {(uint32_t)gpu_at_most(tiles, most), 1, 1},
               block = {GPU_ATTENTION_THREADS, 1, 1};
    return gpu_launch_kernel(converts
                                 ? gpu_attention_sm90_convert_kernels[p->rope.dtype == ROPE_BF16]
                                 : gpu_attention_sm90_gather_kernel,
                             grid, block, arguments, 0, l->stream, l->follows_early);
}
