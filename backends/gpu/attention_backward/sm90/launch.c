/* Tensor maps, the order of tiles, and the launches. */
#include "backends/gpu/attention/prologue.h"
#include "backends/gpu/attention/sm90/call.h"
#include "backends/gpu/attention/sm90/map.h"
#include "backends/gpu/attention_backward/sm90.h"
#include "backends/gpu/attention_backward/sm90/kernels.h"
#include "backends/gpu/candidate.h"
#include "backends/gpu/geometry.h"

#include <string.h>

_Static_assert(sizeof(sm90_backward_sequence) == GPU_BACKWARD_SM90_SEQUENCE &&
                   SM90_ROWS == (int)GPU_BACKWARD_SM90_TILE,
               "in their room");

int gpu_backward_sm90_takes(const rope_attention_problem *p, int32_t device) {
    const int may_fail = (p->rotates[0] || p->rotates[1]) &&
                         p->rope.angle_mode == ROPE_ANGLE_TABLE &&
                         p->rope.out_of_range == ROPE_OUT_OF_RANGE_ERROR;
    rope_attention_problem uncapped = *p; /* caps are looked at here */
    uncapped.soft_cap = 0;
    return !may_fail && gpu_sm90_kernel(&uncapped, device) != NULL;
}

static int is_wide(const rope_attention_problem *p) {
    return p->head_dim > 128 || p->v_head_dim > 128;
}

int gpu_backward_sm90_joins(const rope_attention_problem *p) {
    return !is_wide(p) && !(p->soft_cap > 0);
}

/* Launches: of rows; of keys; of values, where heads are wide. */
enum { ROWS, KEYS, VALUES };

/* Those of all gradients at once. */
enum { STATS, GRADIENTS, QUERIES, JOINT };
static int is_long(const rope_attention_problem *p) {
    return p->head_dim > 64 || p->v_head_dim > 64;
}
static const void *joint_kernel(const rope_attention_problem *p, int which) {
    return gpu_backward_sm90_joint_kernels[is_long(p)][which][p->rope.dtype == ROPE_BF16];
}

/* Kernels of a launch: all tiles, those of the list. */
static const void *const *kernels_of(const rope_attention_problem *p, int which) {
    const int is_bf16 = p->rope.dtype == ROPE_BF16, caps = p->soft_cap > 0,
              longest = p->head_dim > 192 || p->v_head_dim > 128, longer = is_long(p);
    return is_wide(p)      ? gpu_backward_sm90_wide_kernels[which][caps][longest][is_bf16]
           : which == ROWS ? gpu_backward_sm90_rows_kernels[caps][longer][is_bf16]
                           : gpu_backward_sm90_keys_kernels[caps][longer][is_bf16];
}

gpuError_t gpu_backward_sm90_load(const rope_attention_problem *p) {
    const void *kernels[6 + JOINT] = {gpu_backward_sm90_prepare_kernel};
    const int count = is_wide(p) ? 7 : 5, joins = gpu_backward_sm90_joins(p),
              all = count + (joins ? JOINT : 0);
    int32_t early;
    for (int i = 1; i < count; i++)
        kernels[i] = kernels_of(p, (i - 1) / 2)[(i - 1) % 2];
    for (int i = 0; i < JOINT && joins; i++)
        kernels[count + i] = joint_kernel(p, i);
    kernels[all] = gpu_attention_sm90_ahead_kernel;
    gpuError_t error = gpu_kernels_load(kernels, (size_t)all + 1, &early);
    if (joins && error == gpuSuccess)
        error = gpu_allow_shared(kernels[count + GRADIENTS], SM90_BACKWARD_SHARED);
    for (int i = 1; i < count && error == gpuSuccess; i++)
        error = gpu_allow_shared(kernels[i], SM90_BACKWARD_SHARED);
    return error;
}

enum { Q, K, V, DOUT, OUT, READ, DQ = READ, DK, DV, TENSORS };

/* A tensor of q's heads and tokens, or of keys'. */
static sm90_view view_of(int32_t dim, const rope_attention_call *f, int of_keys, const void *data,
                         const int64_t *stride) {
    return of_keys ? (sm90_view){data,        stride,
                                 stride[3],   f->k_position.cu_seqlens ? 1 : f->rope.batch,
                                 f->k_tokens, f->k.heads,
                                 dim}
                   : (sm90_view){data,
                                 stride,
                                 stride[3],
                                 f->rope.batch,
                                 f->rope.tokens,
                                 f->rope.tensor[0].heads,
                                 dim};
}

static void find_views(const rope_attention_problem *p, const rope_attention_backward_call *c,
                       sm90_view *views) {
    const rope_attention_call *f = &c->forward;
    const rope_operand *q = &f->rope.tensor[0];
    const int32_t dim = p->head_dim, v_dim = p->v_head_dim;
    views[Q] = view_of(dim, f, 0, q->in, q->in_stride);
    views[K] = view_of(dim, f, 1, f->k.in, f->k.in_stride);
    views[V] = view_of(v_dim, f, 1, f->v.in, f->v.in_stride);
    views[DOUT] = view_of(v_dim, f, 0, c->dout, c->dout_stride);
    views[OUT] = view_of(v_dim, f, 0, f->out, f->out_stride);
    views[DQ] = view_of(dim, f, 0, c->dq, c->dq_stride);
    views[DK] = view_of(dim, f, 1, c->dk, c->dk_stride);
    views[DV] = view_of(v_dim, f, 1, c->dv, c->dv_stride);
}

/* Measured on an H200 with 16384 tokens: units of rows that run side by side for so many keys each,
 * and tiles of each multiprocessor that begin by length over all units, so that all end at once. */
enum { KEYS_OF_A_UNIT = 256, FEWEST = 4, MOST = 16, LAST_TILES = 8 };

/* Units of keys side by side where tiles of keys wait for each other: fewer do not fill a GPU, dq
 * of more does not stay in its cache. */
enum { JOINT_SIDE = 32 };

/* So many units side by side, within bounds; 0 where there are too many tiles to count. */
static int find_order(sm90_backward_order *order, int64_t each, int64_t units, int64_t some,
                      int multiprocessors) {
    if (units < 1 || each > INT32_MAX / 4 / units)
        return 0;
    const int64_t last = gpu_divide_up(LAST_TILES * (int64_t)multiprocessors, each),
                  fewest = some < FEWEST ? FEWEST : some, side = gpu_at_most(fewest, MOST);
    *order = (sm90_backward_order){(int32_t)each, (int32_t)units, (int32_t)side,
                                   (int32_t)(units > last ? (units - last) / side : 0), NULL};
    return 1;
}

/* Tiles of a sequence, or of all that are packed. */
static int64_t tiles_of(int packed, int64_t rows, int64_t sequences) {
    return packed ? rows / SM90_ROWS + sequences : gpu_divide_up(rows, SM90_ROWS);
}

/* A tile of keys is shared by as many blocks as heads alone ask for, whatever there is of sequences
 * and tokens: bits depend on it. 0 where there are too many tiles to count. */
static int count_tiles(const rope_attention_backward_call *c, sm90_backward_schedule *s,
                       int multiprocessors) {
    const rope_attention_call *f = &c->forward;
    const int64_t shares = f->rope.tensor[0].heads / f->k.heads, pack = sm90_pack_of(shares),
                  sequences = rope_attention_sequences(f);
    const int q_packed = f->rope.position.cu_seqlens != NULL,
              k_packed = f->k_position.cu_seqlens != NULL;
    if (f->rope.tokens > INT32_MAX / 4 / SM90_ROWS || f->k_tokens > SM90_FAR / 2 || sequences < 1 ||
        sequences > INT32_MAX / 16 || f->rope.batch > INT32_MAX / 4)
        return 0;
    const int64_t each = tiles_of(q_packed, f->rope.tokens << pack, sequences),
                  keys = tiles_of(k_packed, f->k_tokens, sequences),
                  longest = gpu_divide_up(f->k_tokens, GPU_BACKWARD_SM90_TILE),
                  clusters = multiprocessors >>
                             (s->wide ? 0 : sm90_backward_steps(longest, f->k.heads, shares)),
                  units = (q_packed ? 1 : sequences) * f->k.heads * (shares >> pack),
                  of_keys = (k_packed ? 1 : sequences) * f->k.heads;
    s->rows = (int32_t)f->rope.batch;
    s->heads = (int32_t)f->k.heads;
    s->shares = (int32_t)shares;
    s->pack = (int32_t)pack;
    s->tokens = (int32_t)f->rope.tokens;
    s->stats_step =
        (int32_t)((gpu_divide_up(f->rope.tokens << pack, 4) + (q_packed ? sequences : 0)) * 4);
    return find_order(&s->order[0], each, units, f->k_tokens / KEYS_OF_A_UNIT, multiprocessors) &&
           find_order(&s->order[1], keys, of_keys, gpu_divide_up(clusters, keys), clusters);
}

int gpu_backward_sm90_fits(const rope_attention_problem *p, const rope_attention_backward_call *c) {
    sm90_view views[TENSORS];
    sm90_backward_schedule s = {.wide = is_wide(p)};
    if (c->forward.k.heads < 1)
        return 0;
    find_views(p, c, views);
    for (int i = 0; i < READ; i++)
        if (!sm90_map_fits(&views[i]))
            return 0;
    return count_tiles(c, &s, 1);
}

int gpu_backward_sm90_turns(const rope_attention_problem *p,
                            const rope_attention_backward_call *c) {
    const rope_attention_call *f = &c->forward;
    const rope_position_map *q = &f->rope.position, *k = &f->k_position;
    return p->rotates[0] && sm90_has_angles(&p->rope) && gpu_attention_stands_alike(f) &&
           q->cu_seqlens == k->cu_seqlens && !f->q_lengths && !f->k_lengths && !q->offsets;
}

static int encode_stats(CUtensorMap *map, const sm90_backward_schedule *s) {
    const cuuint64_t units = (cuuint64_t)s->rows * (cuuint64_t)(s->heads * (s->shares >> s->pack)),
                     step = 4 * (cuuint64_t)s->stats_step,
                     count[3] = {(cuuint64_t)s->stats_step, 2, units}, stride[2] = {step, 2 * step};
    const cuuint32_t box[3] = {SM90_BOX, 2, 1};
    return sm90_map_encode_box(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_SWIZZLE_NONE,
                               s->stats, 3, count, stride, box);
}

static sm90_gradient gradient_of(const sm90_view *v) {
    sm90_gradient g = {(void *)(uintptr_t)v->data, {0}, v->dim / 8, sm90_map_fits(v), {0}};
    memcpy(g.stride, v->stride, sizeof g.stride);
    return g;
}

/* Slabs of a key head, as gpu_backward_launch() has room for. */
static int32_t slabs_of(const rope_attention_call *f, int rows) {
    const int64_t tokens = f->rope.batch * f->rope.tokens,
                  shares = f->rope.tensor[0].heads / f->k.heads;
    return (int32_t)(GPU_BACKWARD_JOINT_SLABS(tokens, shares, rows) + shares + 2);
}

/* Which sequences of a call have their gradients computed at once. */
enum { NONE, SOME, ALL };
static int joint_of(const sm90_backward_schedule *s, const rope_attention_call *f) {
    const int differ =
        f->rope.position.cu_seqlens || f->k_position.cu_seqlens || f->q_lengths || f->k_lengths;
    const int64_t tiles = gpu_divide_up(f->k_tokens, GPU_BACKWARD_SM90_TILE);
    const int steps = differ ? 0 : sm90_backward_steps(tiles, s->heads, s->shares);
    return !s->sums || !sm90_backward_joint(&s->mask, f->k_tokens, f->rope.tokens,
                                            s->heads * s->shares, s->slab, steps)
               ? NONE
           : differ ? SOME
                    : ALL;
}

static sm90_backward_schedule schedule_of(const gpu_backward_sm90_call *l, const sm90_view *views) {
    const rope_attention_backward_call *c = l->call;
    const float scale = l->problem->scale, cap = l->problem->soft_cap;
    sm90_backward_schedule s = {.wide = is_wide(l->problem),
                                .sequences = l->sequences,
                                .mask = sm90_mask_of(l->problem),
                                .unit = 1.44269504f * (cap > 0 ? cap : scale),
                                .scale = scale,
                                .counters = l->counters,
                                .lse = c->forward.lse,
                                .stats = l->stats,
                                .delta = l->delta,
                                .dq = gradient_of(&views[DQ]),
                                .dk = gradient_of(&views[DK]),
                                .dv = gradient_of(&views[DV]),
                                .out = gradient_of(&views[OUT]),
                                .dout = gradient_of(&views[DOUT]),
                                .sums = l->sums,
                                .added = l->added,
                                .slab = GPU_BACKWARD_JOINT_SLAB(is_long(l->problem)),
                                .to_cap = cap > 0 ? scale / cap : 0};
    if (l->problem->rotates[0])
        s.dq.rotation = sm90_rotation_of(&l->problem->rope, &c->forward, 0, l->angles);
    if (l->problem->rotates[1])
        s.dk.rotation = sm90_rotation_of(&l->problem->rope, &c->forward, 1, l->angles);
    s.slabs = slabs_of(&c->forward, s.slab);
    const int packed[2] = {c->forward.rope.position.cu_seqlens != NULL,
                           c->forward.k_position.cu_seqlens != NULL};
    (void)count_tiles(c, &s, l->multiprocessors); /* as gpu_backward_sm90_fits() has seen */
    const int joint = joint_of(&s, &c->forward);
    s.mixed = joint == SOME ? (int32_t)rope_attention_sequences(&c->forward) : 0;
    if (joint != NONE) {
        s.order[1].side = JOINT_SIDE;
        s.order[1].groups = s.order[1].units / JOINT_SIDE;
    }
    for (int i = 0; i < 2; i++) {
        sm90_backward_order *order = &s.order[i];
        s.turns[i] =
            (sm90_backward_turns){NULL, s.counters + i, l->list[i], gpu_backward_sm90_again(l, i)};
        if (packed[i]) /* behind the list */
            order->places = (sm90_backward_place *)(void *)(l->list[i] + GPU_BACKWARD_SM90_TOLD *
                                                                             (int64_t)order->each *
                                                                             order->units);
    }
    for (int i = 0; i < 3; i++)
        s.lse_stride[i] = c->forward.lse_stride[i];
    return s;
}

static gpuError_t prepare(const gpu_backward_sm90_call *l, sm90_backward_schedule *s) {
    void *arguments[] = {(void *)(uintptr_t)l->problem, (void *)(uintptr_t)&l->call->forward, s};
    const int64_t sequences = rope_attention_sequences(&l->call->forward);
    const dim3 grid = {(uint32_t)gpu_at_most(sequences, 4 * (int64_t)l->multiprocessors), 1, 1},
               block = {SM90_PREPARE_THREADS, 1, 1};
    return gpu_launch_kernel(gpu_backward_sm90_prepare_kernel, grid, block, arguments, 0, l->stream,
                             l->early);
}

/* Launches a kernel with a counter of its own; keys by clusters of 1 << steps blocks. */
static gpuError_t launch(const gpu_backward_sm90_call *l, sm90_backward_schedule *s, int which,
                         int steps, int again, void **arguments) {
    const int of_keys = which != ROWS;
    const sm90_backward_order *order = &s->order[of_keys];
    const int64_t clusters =
        gpu_at_most((int64_t)order->each * order->units, l->multiprocessors >> steps);
    cudaLaunchAttribute attributes[2];
    memset(attributes, 0, sizeof attributes);
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = 1u << steps;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    const cudaLaunchConfig_t config = {.gridDim = {(unsigned)(clusters << steps), 1, 1},
                                       .blockDim = {SM90_THREADS, 1, 1},
                                       .dynamicSmemBytes = SM90_BACKWARD_SHARED,
                                       .stream = l->stream,
                                       .attrs = attributes,
                                       .numAttrs = l->follows_early ? 2 : 1};
    s->turns[of_keys].next = s->counters + 2 + again * 5 + which + steps;
    return cudaLaunchKernelExC(&config, kernels_of(l->problem, which)[again], arguments);
}

/* All gradients at once, and what goes before and behind: by a block for each tile, or where there
 * may be none by so many blocks of a multiprocessor. */
enum { BLOCKS = 8 };
static gpuError_t launch_joint(const gpu_backward_sm90_call *l, sm90_backward_schedule *s,
                               void **arguments, CUtensorMap *dq) {
    const int64_t tiles = (int64_t)s->order[0].each * s->order[0].units,
                  most = s->mixed ? BLOCKS * (int64_t)l->multiprocessors : tiles;
    const dim3 rows = {(unsigned)gpu_at_most(tiles, most), 1, 1},
               row_threads = {SM90_JOINT_THREADS, 1, 1}, threads = {SM90_THREADS, 1, 1},
               keys = {(unsigned)gpu_at_most((int64_t)s->order[1].each * s->order[1].units,
                                             l->multiprocessors),
                       1, 1};
    void *stats[] = {s}, *queries[] = {dq, s};
    s->turns[1].next = s->counters + GPU_BACKWARD_SM90_COUNTERS - 1;
    gpuError_t error = gpu_launch_kernel(joint_kernel(l->problem, STATS), rows, row_threads, stats,
                                         0, l->stream, l->follows_early);
    if (error == gpuSuccess)
        error = gpu_launch_kernel(joint_kernel(l->problem, GRADIENTS), keys, threads, arguments,
                                  SM90_BACKWARD_SHARED, l->stream, l->follows_early);
    if (error == gpuSuccess && s->dq.data)
        error = gpu_launch_kernel(joint_kernel(l->problem, QUERIES), rows, row_threads, queries, 0,
                                  l->stream, l->follows_early);
    return error;
}

/* Bits of powers of 2 that sequences of a call may have. */
static int steps_of(const rope_attention_call *f) {
    const int differ = f->k_position.cu_seqlens || f->k_lengths;
    const int64_t heads = f->k.heads, shares = f->rope.tensor[0].heads / heads,
                  longest = gpu_divide_up(f->k_tokens, GPU_BACKWARD_SM90_TILE);
    int bits = 1 << sm90_backward_steps(longest, heads, shares);
    for (int64_t tiles = 1; differ && tiles < longest && heads * tiles <= 256; tiles++)
        bits |= 1 << sm90_backward_steps(tiles, heads, shares);
    return bits;
}

gpuError_t gpu_backward_sm90_launch(const gpu_backward_sm90_call *l) {
    const int32_t dtype = l->problem->rope.dtype;
    sm90_view views[TENSORS];
    CUtensorMap maps[TENSORS], stats;
    find_views(l->problem, l->call, views);
    sm90_backward_schedule s = schedule_of(l, views);
    for (int i = 0; i < TENSORS; i++) {
        const int heads = i == K || i == V || i == DK || i == DV ? 1 : 1 << s.pack,
                  is_there = i < READ || sm90_map_fits(&views[i]);
        if (!sm90_map_encode(&maps[i], dtype, &views[is_there ? i : Q], heads, SM90_BOX / heads, 1))
            return cudaErrorInvalidValue;
    }
    if (!encode_stats(&stats, &s))
        return cudaErrorInvalidValue;
    gpuError_t error = prepare(l, &s);
    if (l->problem->rotates[0] && error == gpuSuccess)
        error = sm90_launch_angles(l->problem, &l->call->forward, l->angles, l->follows_early,
                                   l->stream);
    void *rows[] = {&maps[Q], &maps[K], &maps[V], &maps[DOUT], &maps[OUT], &maps[DQ], &s},
         *keys[] = {&maps[Q], &maps[K], &maps[V], &maps[DOUT], &stats, &maps[DK], &maps[DV], &s};
    const int joint = joint_of(&s, &l->call->forward), dk = s.dk.data != NULL,
              dv = s.dv.data != NULL,
              wanted = s.wide     ? dk | dv << 1
                       : dk || dv ? steps_of(&l->call->forward)
                                  : 0;
    if (joint != NONE && error == gpuSuccess)
        error = launch_joint(l, &s, keys, &maps[DQ]);
    for (int again = joint == ALL; again < 2 && error == gpuSuccess; again++) {
        error = launch(l, &s, ROWS, 0, again, rows); /* stats are wanted */
        for (int i = 0; i < 4 && error == gpuSuccess; i++)
            if (wanted >> i & 1)
                error = launch(l, &s, s.wide ? KEYS + i : KEYS, s.wide ? 0 : i, again, keys);
    }
    return error;
}
