/* Tensor maps, the order of tiles, and the launches. */
#include "backends/gpu/attention/sm90/maps.h"
#include "backends/gpu/attention_backward/sm90.h"
#include "backends/gpu/attention_backward/sm90/kernels.h"
#include "backends/gpu/candidate.h"
#include "backends/gpu/geometry.h"

#include <string.h>

int gpu_backward_sm90_takes(const rope_attention_problem *p, int32_t device) {
    return p->scale > 0 && gpu_sm90_kernel(p, device) != NULL;
}

gpuError_t gpu_backward_sm90_load(int32_t dtype) {
    const int is_bf16 = dtype == ROPE_BF16;
    const void *kernels[4];
    int32_t early;
    memcpy(kernels, gpu_backward_sm90_rows_kernels[is_bf16], 2 * sizeof *kernels);
    memcpy(kernels + 2, gpu_backward_sm90_keys_kernels[is_bf16], 2 * sizeof *kernels);
    gpuError_t error = gpu_kernels_load(kernels, 4, &early);
    for (int i = 0; i < 4 && error == gpuSuccess; i++)
        error = gpu_allow_shared(kernels[i], SM90_BACKWARD_SHARED);
    return error;
}

enum { Q, K, V, DOUT, OUT, READ, DQ = READ, DK, DV, TENSORS };

static void find_views(const rope_attention_backward_call *c, sm90_view *views) {
    const rope_attention_call *f = &c->forward;
    const rope_operand *q = &f->rope.tensor[0];
    const int64_t rows = f->rope.batch;
    views[Q] = (sm90_view){q->in, q->in_stride, rows, f->rope.tokens, q->heads};
    views[K] = (sm90_view){f->k.in, f->k.in_stride, rows, f->k_tokens, f->k.heads};
    views[V] = (sm90_view){f->v.in, f->v.in_stride, rows, f->k_tokens, f->k.heads};
    views[DOUT] = (sm90_view){c->dout, c->dout_stride, rows, f->rope.tokens, q->heads};
    views[OUT] = (sm90_view){f->out, f->out_stride, rows, f->rope.tokens, q->heads};
    views[DQ] = (sm90_view){c->dq, c->dq_stride, rows, f->rope.tokens, q->heads};
    views[DK] = (sm90_view){c->dk, c->dk_stride, rows, f->k_tokens, f->k.heads};
    views[DV] = (sm90_view){c->dv, c->dv_stride, rows, f->k_tokens, f->k.heads};
}

/* Measured on an H200 with 16384 tokens: units of rows that run side by side for so many keys each,
 * and tiles of each multiprocessor that begin by length over all units, so that all end at once. */
enum { KEYS_OF_A_UNIT = 256, FEWEST = 4, MOST = 16, LAST_TILES = 8 };

static sm90_units side_by_side(int64_t units, int64_t each, int64_t some, int multiprocessors) {
    const int64_t last = gpu_divide_up(LAST_TILES * (int64_t)multiprocessors, each),
                  fewest = some < FEWEST ? FEWEST : some, side = gpu_at_most(fewest, MOST);
    return (sm90_units){(int32_t)side, (int32_t)(units > last ? (units - last) / side : 0)};
}

/* Fills how many tiles of rows and of keys there are; 0 where there are too many to count. */
static int count_tiles(const rope_attention_backward_call *c, sm90_backward_schedule *s,
                       int multiprocessors, int64_t tiles[2]) {
    const rope_attention_call *f = &c->forward;
    const int64_t shares = f->rope.tensor[0].heads / f->k.heads, pack = sm90_pack_of(shares),
                  each = gpu_divide_up(f->rope.tokens << pack, 2 * SM90_BOX),
                  keys = gpu_divide_up(f->k_tokens, 2 * SM90_BOX),
                  units = f->rope.batch * f->k.heads, of_rows = units * (shares >> pack);
    if (each > INT32_MAX / 4 / of_rows || keys > INT32_MAX / 4 / units ||
        f->rope.tokens > INT32_MAX / 4 / (2 * SM90_BOX) || f->k_tokens > SM90_FAR / 2)
        return 0;
    s->rows = (int32_t)f->rope.batch;
    s->heads = (int32_t)f->k.heads;
    s->shares = (int32_t)shares;
    s->pack = (int32_t)pack;
    s->tokens = (int32_t)f->rope.tokens;
    s->k_tokens = (int32_t)f->k_tokens;
    s->stats_step = (int32_t)(gpu_divide_up(f->rope.tokens << pack, 4) * 4);
    s->side[0] = side_by_side(of_rows, each, f->k_tokens / KEYS_OF_A_UNIT, multiprocessors);
    s->side[1] = side_by_side(units, keys, gpu_divide_up(multiprocessors, keys), multiprocessors);
    tiles[0] = each * of_rows;
    tiles[1] = keys * units;
    return 1;
}

int gpu_backward_sm90_fits(const rope_attention_backward_call *c) {
    sm90_view views[TENSORS];
    sm90_backward_schedule s;
    int64_t tiles[2];
    if (sm90_depends(&c->forward) || c->forward.k.heads < 1)
        return 0;
    find_views(c, views);
    for (int i = 0; i < READ; i++)
        if (!sm90_fits_map(&views[i]))
            return 0;
    return count_tiles(c, &s, 1, tiles);
}

static int encode_stats(CUtensorMap *map, const sm90_backward_schedule *s) {
    const cuuint64_t units = (cuuint64_t)s->rows * (cuuint64_t)(s->heads * (s->shares >> s->pack)),
                     step = 4 * (cuuint64_t)s->stats_step,
                     count[3] = {(cuuint64_t)s->tokens << s->pack, 2, units},
                     stride[2] = {step, 2 * step};
    const cuuint32_t box[3] = {SM90_BOX, 2, 1};
    return sm90_encode_box(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_SWIZZLE_NONE,
                           s->stats, 3, count, stride, box);
}

static sm90_gradient gradient_of(const sm90_view *v) {
    sm90_gradient g = {(void *)(uintptr_t)v->data, {0}, sm90_fits_map(v)};
    memcpy(g.stride, v->stride, sizeof g.stride);
    return g;
}

static sm90_backward_schedule schedule_of(const gpu_backward_sm90_call *l, const sm90_view *views,
                                          int64_t tiles[2]) {
    const rope_attention_backward_call *c = l->call;
    sm90_backward_schedule s = {.mask = sm90_mask_of(l->problem),
                                .unit = 1.44269504f * l->problem->scale,
                                .scale = l->problem->scale,
                                .lse = c->forward.lse,
                                .stats = l->stats,
                                .delta = l->delta,
                                .dq = gradient_of(&views[DQ]),
                                .dk = gradient_of(&views[DK]),
                                .dv = gradient_of(&views[DV])};
    for (int i = 0; i < 2; i++)
        s.turns[i] = (sm90_backward_turns){(uint32_t *)l->counters + 4 * i, l->list[i],
                                           gpu_backward_sm90_again(l, i)};
    for (int i = 0; i < 3; i++)
        s.lse_stride[i] = c->forward.lse_stride[i];
    (void)count_tiles(c, &s, l->multiprocessors, tiles); /* as gpu_backward_sm90_fits() has seen */
    return s;
}

gpuError_t gpu_backward_sm90_launch(const gpu_backward_sm90_call *l) {
    const int32_t dtype = l->problem->rope.dtype, is_bf16 = dtype == ROPE_BF16;
    int64_t tiles[2];
    sm90_view views[TENSORS];
    CUtensorMap maps[TENSORS], stats;
    find_views(l->call, views);
    sm90_backward_schedule s = schedule_of(l, views, tiles);
    for (int i = 0; i < TENSORS; i++) {
        const int heads = i == K || i == V || i == DK || i == DV ? 1 : 1 << s.pack,
                  is_there = i < READ || sm90_fits_map(&views[i]);
        if (!sm90_encode(&maps[i], dtype, &views[is_there ? i : Q], heads, SM90_BOX / heads))
            return cudaErrorInvalidValue;
    }
    if (!encode_stats(&stats, &s))
        return cudaErrorInvalidValue;
    gpuError_t error = cudaMemsetAsync(l->counters, 0xff,
                                       GPU_BACKWARD_SM90_COUNTERS + 8 * (size_t)s.rows, l->stream);
    void *rows[] = {&maps[Q], &maps[K], &maps[V], &maps[DOUT], &maps[OUT], &maps[DQ], &s},
         *keys[] = {&maps[Q], &maps[K], &maps[V], &maps[DOUT], &stats, &maps[DK], &maps[DV], &s};
    const int wanted[2] = {1, s.dk.data || s.dv.data}; /* stats are */
    for (int i = 0; i < 4 && error == gpuSuccess; i++) {
        const int of_keys = i % 2, again = i / 2;
        const dim3 block = {SM90_THREADS, 1, 1},
                   grid = {(uint32_t)gpu_at_most(tiles[of_keys], l->multiprocessors), 1, 1};
        if (wanted[of_keys])
            error = gpu_launch_kernel(of_keys ? gpu_backward_sm90_keys_kernels[is_bf16][again]
                                              : gpu_backward_sm90_rows_kernels[is_bf16][again],
                                      grid, block, of_keys ? keys : rows, SM90_BACKWARD_SHARED,
                                      l->stream, i && l->follows_early);
    }
    return error;
}
