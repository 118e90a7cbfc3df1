/* The order of tiles, and the launch. */
#include "backends/gpu/attention/sm90/kernels.h"
#include "backends/gpu/attention/sm90/map.h"

#include "backends/gpu/attention/gather.h"
#include "backends/gpu/attention/kernels.h"
#include "backends/gpu/attention/prologue.h"
#include "backends/gpu/candidate.h"
#include "backends/gpu/geometry.h"
#include "common/math/attention.h"

#include <float.h>
#include <math.h>

/* Tiles are dealt where no block has more of them. */
enum { ROUNDS = 2 };

/* Units whose tiles run side by side, the longest ones first: so many at least, and as many as have
 * so many bytes of keys and values, which stay in the L2. */
enum { GROUP = 16, GROUP_BYTES = 24 << 20 };

/* Elements of the heads that a kernel has room for. */
typedef struct {
    int16_t dim, v_dim;
} sm90_room;
static const sm90_room rooms[SM90_HEADS] = {[SM90_64] = {64, 64},
                                            [SM90_128] = {128, 128},
                                            [SM90_192] = {192, 128},
                                            [SM90_256] = {256, 256}};

/* Which kernels have room for a problem's heads; SM90_HEADS: none. */
static int heads_of(const rope_attention_problem *p) {
    int i = 0;
    while (i < SM90_HEADS && (p->head_dim > rooms[i].dim || p->v_head_dim > rooms[i].v_dim))
        i++;
    return p->head_dim % 8 || p->v_head_dim % 8 ? (int)SM90_HEADS : i;
}

static sm90_room room_of(const rope_attention_problem *p) {
    return rooms[heads_of(p)];
}

/* Keys or values: of a tensor, or of a cache whose rows are pages. gathered: or sequences. */
static sm90_view view_of(const rope_attention_problem *p, const rope_attention_call *call,
                         const rope_append_operand *o, int32_t dim, int gathered) {
    if (p->cache)
        return (sm90_view){o->cache,
                           o->cache_stride,
                           o->cache_stride[4],
                           gathered ? rope_attention_sequences(call) : call->pages,
                           gathered ? call->k_tokens : p->page_size,
                           o->heads,
                           dim};
    const int64_t *stride = o->out ? o->out_stride : o->in_stride;
    return (sm90_view){o->out ? o->out : o->in,
                       stride,
                       stride[3],
                       call->k_position.cu_seqlens ? 1 : call->rope.batch,
                       call->k_tokens,
                       o->heads,
                       dim};
}

static sm90_view queries_of(const rope_attention_problem *p, const rope_attention_call *call) {
    const rope_operand *q = &call->rope.tensor[0];
    const int64_t *stride = q->out ? q->out_stride : q->in_stride;
    return (sm90_view){q->out ? q->out : q->in, stride,   stride[3],  call->rope.batch,
                       call->rope.tokens,       q->heads, p->head_dim};
}

static sm90_view results_of(const rope_attention_problem *p, const rope_attention_call *call) {
    return (sm90_view){call->out,        call->out_stride,  call->out_stride[3],
                       call->rope.batch, call->rope.tokens, call->rope.tensor[0].heads,
                       p->v_head_dim};
}

int32_t sm90_pack_of(int64_t shares) {
    return shares <= 64 && (shares & (shares - 1)) == 0 ? __builtin_ctz((unsigned)shares) : 0;
}

/* Units that run side by side: an equal part of all. */
static int64_t group_of(const rope_attention_problem *p, const rope_attention_call *call,
                        const sm90_schedule *s) {
    const int64_t each = 2 * (p->head_dim + p->v_head_dim) * call->k_tokens,
                  fit = each > 0 ? GROUP_BYTES / each * (s->shares >> s->pack) : s->units,
                  parts = gpu_divide_up(s->units, fit > GROUP ? fit : GROUP);
    return parts > 1 ? gpu_divide_up(s->units, parts) : s->units;
}

/* 0 where there are too many to count. */
static int count_tiles(const rope_attention_call *call, sm90_schedule *s) {
    const int64_t heads = call->rope.tensor[0].heads, sequences = rope_attention_sequences(call);
    const int packed = call->rope.position.cu_seqlens != NULL;
    const int64_t rows = call->rope.tokens << s->pack,
                  each = packed ? rows / SM90_ROWS + sequences : gpu_divide_up(rows, SM90_ROWS),
                  units = (heads >> s->pack) * (packed ? 1 : sequences);
    if (units < 1 || each > INT32_MAX / 2 / units)
        return 0;
    s->each = (int32_t)each;
    s->heads = (int32_t)(heads >> s->pack);
    s->units = (int32_t)units;
    s->tiles = (int32_t)(each * units);
    return 1;
}

/* Whether sequences differ by lengths that lie on the device. */
static int depends(const rope_attention_call *call) {
    return call->rope.position.cu_seqlens || call->k_position.cu_seqlens || call->q_lengths ||
           call->k_lengths;
}

/* Whether positions of queries are indices that depend on those lengths. */
static int stands_by_lengths(const rope_attention_call *call) {
    return !call->rope.position.ids && depends(call);
}

/* Whether rows of a batch have positions of their own. */
static int has_rows(const rope_attention_call *call) {
    const rope_position_map *map = &call->rope.position;
    return call->rope.batch > 1 && (map->ids ? map->id_stride[1] != 0 : stands_by_lengths(call));
}

static int64_t fours_of(const rope_problem *r) {
    return r->pairs / 4;
}

/* Elements of queries from which a pass over them takes longer than the launch that has angles. */
enum { LONG_PASS = 1 << 22 };

/* Whether queries are rotated in shared memory: where they are copied a tile ahead, and heads share
 * angles or a pass ahead would look for lengths. */
static int rotates_here(const rope_attention_problem *p, const rope_attention_call *call) {
    const rope_problem *r = &p->rope;
    const rope_position_map *map = &call->rope.position;
    return GPU_SM90_QUERIES(room_of(p).dim) == 2 &&
           (sm90_pack_of(call->rope.tensor[0].heads / call->k.heads) > 0 ||
            stands_by_lengths(call)) &&
           call->rope.tensor[0].heads * call->rope.tokens * call->rope.batch >=
               LONG_PASS / p->head_dim &&
           r->angle_mode == ROPE_ANGLE_EXACT && r->axes == 1 && r->frequency_sets == 1 &&
           !r->xpos_rate && r->pairing_in == ROPE_PAIRING_HALF_SPLIT &&
           r->pairing_out == ROPE_PAIRING_HALF_SPLIT && r->arithmetic == ROPE_ARITHMETIC_FP32 &&
           r->pairs % 8 == 0 && r->rotary_offset[0] % 8 == 0 && !map->offsets;
}

int gpu_sm90_rotates(const rope_attention_problem *p, const rope_attention_call *call) {
    return p->rotates[0] && !call->rope.tensor[0].out;
}

size_t gpu_sm90_angles(const rope_attention_problem *p) {
    return p->rotates[0] ? (size_t)fours_of(&p->rope) * 8 * sizeof(float) : 0;
}

int32_t sm90_keys_of_tile(const rope_attention_problem *p) {
    return GPU_SM90_KEYS(room_of(p).dim);
}

int32_t sm90_page_of(const rope_attention_problem *p) {
    int64_t page = p->page_size, rest = sm90_keys_of_tile(p);
    if (p->cache != ROPE_CACHE_TABLE)
        return 0;
    while (rest > 0) {
        const int64_t next = page % rest;
        page = rest;
        rest = next;
    }
    return (int32_t)page;
}

/* Rows of queries of a key head, of all sequences together, from which it pays to gather keys of
 * pages that copies take so many keys of, or fewer; and of any pages. */
enum { GATHER_ROWS = 1024, GATHER_PAGE = 32, GATHER_ROWS_OF_ANY = 16384 };

static int pays(const rope_attention_problem *p, double rows) {
    return p->cache == ROPE_CACHE_TABLE &&
           rows >= (sm90_page_of(p) <= GATHER_PAGE ? GATHER_ROWS : GATHER_ROWS_OF_ANY);
}

/* Smaller calls may have fewer heads of k, hence more rows of each. */
int gpu_sm90_may_gather(const rope_attention_problem *p, const gpu_attention_sizes *s) {
    return pays(p, (double)s->tokens * (double)s->q_heads);
}

/* Whether keys and values of a call are gathered. */
static int gathers(const rope_attention_problem *p, const rope_attention_call *call) {
    const int64_t shares = call->rope.tensor[0].heads / call->k.heads;
    return gpu_attention_converts(p) ? gpu_attention_gathers(p, call, 0)
                                     : pays(p, (double)call->rope.tokens * (double)shares) &&
                                           gpu_attention_gathers_at_once(p, call);
}

/* Lanes that copy a tile of keys from a table's pages, each 64 elements of some keys. */
enum { LANES = 32 };

static int takes_pages(const rope_attention_problem *p) {
    const int32_t page = sm90_page_of(p), dim = room_of(p).dim;
    return !page || (p->page_size <= INT32_MAX / 2 &&
                     (gpu_attention_converts(p) ||
                      (page % 8 == 0 && GPU_SM90_KEYS(dim) / page * (dim / 64) <= LANES)));
}

static int takes_cache(const rope_attention_problem *p) {
    return !p->cache || (room_of(p).dim == room_of(p).v_dim && p->k.dim_block == p->head_dim &&
                         p->v.dim_block == p->v_head_dim && !p->rotates[1] && takes_pages(p));
}

int gpu_sm90_looks_at_pages(const rope_attention_problem *p) {
    return p->cache != 0;
}

static const void *kernel_of(const rope_attention_problem *p) {
    return (p->soft_cap > 0 ? gpu_attention_sm90_cap_kernels
                            : gpu_attention_sm90_kernels)[heads_of(p)][p->rope.dtype == ROPE_BF16];
}

/* That of norms, or NULL. */
static const void *normed_of(const rope_attention_problem *p) {
    return p->head_dim == 128 && heads_of(p) == SM90_128 && p->rope.pairs == 64 && p->rotates[1] &&
                   !(p->soft_cap > 0)
               ? gpu_attention_sm90_norm_kernels[p->rope.dtype == ROPE_BF16]
               : NULL;
}

/* By a polynomial that has tanh(x) within 1.2e-7 of itself for x up to 0.75. */
static sm90_cap cap_of(const rope_attention_problem *p) {
    static const double tanh[6] = {
        1, -0x1.55545ap-2, 0x1.10e782p-3, -0x1.b4ff60p-5, 0x1.40d8acp-6, -0x1.3515aap-8};
    const double slope = (double)p->scale / p->soft_cap, log2_e = 1.4426950408889634;
    double unit = log2_e * p->scale;
    sm90_cap cap = {.end = (float)(0.75 / slope),
                    .most = (float)(log2_e * p->soft_cap),
                    .rise = (float)(2 * log2_e * slope)};
    for (int i = 0; i < 6; i++, unit *= slope * slope)
        cap.near[i] = (float)(unit * tanh[i]);
    return cap;
}

/* Whether fp32 has that polynomial's factors, the last of which needs 12 bits. */
static int takes_cap(const rope_attention_problem *p) {
    const float last = p->soft_cap > 0 ? fabsf(cap_of(p).near[5]) : 1;
    return last >= 0x1p-137f && last <= FLT_MAX;
}

const void *gpu_sm90_kernel(const rope_attention_problem *p, int32_t device) {
    int major = 0, minor = 0;
    if (heads_of(p) == SM90_HEADS || p->rope.dtype == ROPE_F32 || !takes_cache(p) || p->ring ||
        !takes_cap(p) || p->mask == ROPE_MASK_TREE || !(p->scale > 0))
        return NULL;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess)
        return NULL;
    return major == 9 && minor == 0 ? kernel_of(p) : NULL;
}

int32_t gpu_sm90_shared(const rope_attention_problem *p) {
    return GPU_SM90_SHARED(room_of(p).dim, room_of(p).v_dim);
}

gpuError_t gpu_sm90_load(const rope_attention_problem *p) {
    const int is_bf16 = p->rope.dtype == ROPE_BF16;
    const void *const normed = normed_of(p);
    const void *const kernels[] = {kernel_of(p), normed, gpu_attention_sm90_keys_kernels[is_bf16],
                                   gpu_attention_sm90_angles_kernel,
                                   gpu_attention_sm90_pages_kernel};
    int32_t early;
    const gpuError_t error = gpu_kernels_load(kernels, sizeof kernels / sizeof kernels[0], &early);
    return error == gpuSuccess && normed ? gpu_allow_shared(normed, gpu_sm90_shared(p)) : error;
}

int gpu_sm90_fits(const rope_attention_problem *p, const rope_attention_call *call) {
    const sm90_view views[] = {queries_of(p, call), results_of(p, call),
                               view_of(p, call, &call->k, p->head_dim, 0),
                               view_of(p, call, &call->v, p->v_head_dim, 0)};
    const int converts = gpu_attention_converts(p);
    if (p->rotates[0] && p->rope.angle_mode == ROPE_ANGLE_TABLE &&
        p->rope.out_of_range == ROPE_OUT_OF_RANGE_ERROR)
        return 0; /* a query may have no position */
    if (gpu_sm90_rotates(p, call) && !rotates_here(p, call))
        return 0;
    if (p->cache && rope_attention_capacity(p, call) > INT32_MAX / 2)
        return 0;
    if (converts && (!gathers(p, call) || !gpu_moves_cache(p, &p->k, call, &call->k) ||
                     !gpu_moves_cache(p, &p->v, call, &call->v)))
        return 0;
    for (int i = 0; i < (converts ? 2 : 4); i++)
        if (!sm90_map_fits(&views[i]))
            return 0;
    return count_tiles(
        call, &(sm90_schedule){.pack = sm90_pack_of(call->rope.tensor[0].heads / call->k.heads)});
}

static int takes_norm(const rope_attention_problem *p, const gpu_sm90_norms *norms, int which) {
    const rope_append_steps *s = &norms->steps[which];
    const rope_append_operand *o = &norms->operand[which];
    return o->heads && s->norm == ROPE_NORM_RMS && s->norm_scope == ROPE_NORM_HEAD &&
           s->norm_dim == p->head_dim && s->weight == ROPE_NORM_WEIGHT &&
           s->rounding == ROPE_NORM_ROUND_TWICE && s->weight_dtype == p->rope.dtype &&
           (!o->weight_stride || o->heads == 1) && (uintptr_t)o->weight % 16 == 0;
}

/* Keys have the angles of queries. */
int gpu_sm90_normalises(const rope_attention_problem *p, const rope_attention_call *call,
                        const gpu_sm90_norms *norms) {
    const sm90_view in = {call->k.in,     call->k.in_stride, call->k.in_stride[3], call->rope.batch,
                          call->k_tokens, call->k.heads,     p->head_dim};
    return normed_of(p) && gpu_sm90_rotates(p, call) && call->k.in && !depends(call) &&
           gpu_attention_stands_alike(call) && takes_norm(p, norms, 0) && takes_norm(p, norms, 1) &&
           sm90_map_fits(&in);
}

static int32_t near(int64_t n) {
    return n < SM90_FAR ? (int32_t)n : SM90_FAR;
}

sm90_mask sm90_mask_of(const rope_attention_problem *p) {
    return (sm90_mask){near(p->window - 1), p->mask == ROPE_MASK_CAUSAL ? 0 : near(p->window_right),
                       near(p->chunk)};
}

static sm90_rotation rotation_of(const rope_attention_problem *p, const rope_attention_call *call,
                                 void *angles) {
    const rope_problem *r = &p->rope;
    if (!gpu_sm90_rotates(p, call))
        return (sm90_rotation){0};
    return (sm90_rotation){.pairs = r->pairs,
                           .from = r->rotary_offset[0],
                           .row_step = has_rows(call) ? (int32_t)call->rope.tokens : 0,
                           .angles = angles};
}

static sm90_schedule schedule_of(const rope_attention_problem *p, const rope_attention_call *call,
                                 int32_t page, const int32_t *failed, const gpu_sm90_memory *memory,
                                 int splits) {
    const int64_t shares = call->rope.tensor[0].heads / call->k.heads;
    sm90_schedule s = {.shares = (int32_t)shares,
                       .pack = sm90_pack_of(shares),
                       .tokens = depends(call) || failed ? -1 : (int32_t)call->rope.tokens,
                       .k_tokens = (int32_t)call->k_tokens,
                       .page = page,
                       .mask = sm90_mask_of(p),
                       .unit = p->soft_cap > 0 ? 1 : 1.44269504f * p->scale,
                       .has_sinks = p->sink_dtype != 0,
                       .splits = splits,
                       .tickets = memory->tickets,
                       .rotation = rotation_of(p, call, memory->angles),
                       .lse = call->lse};
    s.lowest = -FLT_MAX / (s.unit > 0.5f ? 2 * s.unit : 1);
    for (int i = 0; i < 3; i++)
        s.lse_stride[i] = call->lse_stride[i];
    (void)count_tiles(call, &s); /* as gpu_sm90_fits() has seen */
    s.group = (int32_t)group_of(p, call, &s);
    return s;
}

static gpuError_t launch_angles(const gpu_sm90_call *l, int early) {
    const rope_problem *r = &l->problem->rope;
    const rope_position_map *map = &l->call->rope.position;
    const int64_t tokens = l->call->rope.tokens,
                  count = tokens * (has_rows(l->call) ? l->call->rope.batch : 1) * fours_of(r);
    sm90_positions p = {.count = count,
                        .fours = (int32_t)fours_of(r),
                        .tokens = (int32_t)tokens,
                        .negative = r->direction != ROPE_FORWARD,
                        .wide = map->wide,
                        .depends = stands_by_lengths(l->call),
                        .factor = (float)r->set[0].attention_factor,
                        .turns = r->set[0].turns,
                        .ids = map->ids,
                        .id_row = map->id_stride[1],
                        .id_token = map->id_stride[2],
                        .offset = map->ids || stands_by_lengths(l->call)
                                      ? map->offset
                                      : rope_sum(map->offset, l->call->k_tokens - tokens),
                        .angles = l->memory.angles,
                        .tickets = l->memory.tickets};
    void *arguments[] = {&p, (void *)(uintptr_t)l->problem, (void *)(uintptr_t)l->call};
    const dim3 grid = {(uint32_t)gpu_divide_up(count, SM90_ANGLE_THREADS), 1, 1},
               block = {SM90_ANGLE_THREADS, 1, 1};
    return gpu_launch_kernel(gpu_attention_sm90_angles_kernel, grid, block, arguments, 0, l->stream,
                             early);
}

static sm90_norm norm_of(const gpu_sm90_norms *norms, int which) {
    return (sm90_norm){.weight = norms->operand[which].weight, .eps = norms->steps[which].eps};
}

static gpuError_t launch_keys(const gpu_sm90_call *l, sm90_rotation *rotation) {
    const rope_append_operand *k = &l->call->k;
    sm90_norm norm = norm_of(l->norms, 1);
    sm90_keys_ahead keys = {.in = k->in,
                            .out = k->out,
                            .count = l->call->rope.batch * l->call->k_tokens,
                            .tokens = (int32_t)l->call->k_tokens,
                            .heads = (int32_t)k->heads};
    for (int i = 0; i < 3; i++) {
        keys.in_stride[i] = k->in_stride[i];
        keys.out_stride[i] = k->out_stride[i];
    }
    void *arguments[] = {&keys, rotation, &norm};
    const int64_t threads = keys.count * (rotation->pairs / 8);
    const dim3 grid = {(uint32_t)gpu_divide_up(threads, SM90_ANGLE_THREADS), 1, 1},
               block = {SM90_ANGLE_THREADS, 1, 1};
    return gpu_launch_kernel(gpu_attention_sm90_keys_kernels[l->problem->rope.dtype == ROPE_BF16],
                             grid, block, arguments, 0, l->stream, l->follows_early);
}

/* Where a launch that looks at pages says that packed sequences are all left out, or NULL. */
static int32_t *none_of(const gpu_sm90_call *l) {
    return gpu_sm90_looks_at_pages(l->problem) && l->leaves_few && l->call->rope.position.cu_seqlens
               ? (int32_t *)l->memory.tickets + 1
               : NULL;
}

static gpuError_t launch_pages(const gpu_sm90_call *l) {
    int few = l->leaves_few ? GPU_SPLIT_ROWS : 0;
    int32_t *none = none_of(l);
    void *arguments[] = {(void *)(uintptr_t)l->problem, (void *)(uintptr_t)l->call,
                         (void *)(uintptr_t)&l->memory.failed, &few, &none};
    const dim3 grid = {(uint32_t)gpu_at_most(rope_attention_sequences(l->call), 65535), 1, 1},
               block = {GPU_ATTENTION_THREADS, 1, 1};
    return gpu_launch_kernel(gpu_attention_sm90_pages_kernel, grid, block, arguments, 0, l->stream,
                             l->early);
}

static void from_rows(rope_append_operand *o) {
    for (int i = 0; i < 4; i++)
        o->cache_stride[i < 3 ? i : 4] = o->out_stride[i];
    o->cache = o->out;
    o->out = NULL;
}

/* Blocks that convert on a multiprocessor: fewer begin in vain than there are tiles of few queries.
 */
enum { CONVERTERS = 16 };

/* rows: the call, whose cache becomes what is gathered. */
static gpuError_t gather(const gpu_sm90_call *l, rope_attention_call *rows) {
    const rope_attention_problem *p = l->problem;
    gpu_gathering how = gpu_attention_gathering(p, rows, l->memory.gathered, 1);
    how.few = l->leaves_few ? GPU_SPLIT_ROWS : 0;
    how.tile = sm90_keys_of_tile(p);
    from_rows(&rows->k);
    from_rows(&rows->v);
    return gpu_attention_launch_gather(
        p, l->call, &how, gpu_attention_converts(p) ? CONVERTERS * l->multiprocessors : INT32_MAX,
        l->stream, l->follows_early);
}

/* first: the first launch of its call with these tickets. */
static gpuError_t attend(const gpu_sm90_call *l, int first) {
    const rope_attention_problem *p = l->problem;
    const int looks = gpu_sm90_looks_at_pages(p), gathered = gathers(p, l->call);
    rope_attention_call call = *l->call;
    gpuError_t error = gathered ? gather(l, &call) : gpuSuccess;
    const sm90_view q = queries_of(p, &call), k = view_of(p, &call, &call.k, p->head_dim, gathered),
                    v = view_of(p, &call, &call.v, p->v_head_dim, gathered),
                    out = results_of(p, &call);
    const int32_t *failed = looks ? l->memory.failed : l->failed, dtype = p->rope.dtype,
                  page = gathered ? 0 : sm90_page_of(p), keys = page ? page : sm90_keys_of_tile(p);
    sm90_schedule schedule = schedule_of(p, &call, page, failed, &l->memory, l->leaves_few);
    sm90_cap cap = p->soft_cap > 0 ? cap_of(p) : (sm90_cap){0};
    sm90_norm norm = l->norms ? norm_of(l->norms, 0) : (sm90_norm){0};
    const int32_t pack = 1 << schedule.pack;
    schedule.none = none_of(l);
    CUtensorMap maps[4];
    if (!sm90_map_encode(&maps[0], dtype, &q, pack, SM90_ROWS / pack, 1) ||
        !sm90_map_encode(&maps[1], dtype, &k, 1, keys, 1) ||
        !sm90_map_encode(&maps[2], dtype, &v, 1, keys, 1) ||
        !sm90_map_encode(&maps[3], dtype, &out, pack, 64 / pack, 1))
        return cudaErrorInvalidValue;
    if (schedule.tiles <= ROUNDS * l->multiprocessors)
        schedule.tickets = NULL;
    const int rotates = schedule.rotation.pairs > 0,
              resets = schedule.tickets && !(rotates && first);
    if (error == gpuSuccess && resets)
        error = cudaMemsetAsync(schedule.tickets, 0, sizeof *schedule.tickets, l->stream);
    if (error == gpuSuccess && l->norms)
        error = launch_keys(l, &schedule.rotation);
    void *arguments[] = {&maps[0], &maps[1],  &maps[2],
                         &maps[3], &schedule, (void *)(uintptr_t)p,
                         &call,    &failed,   l->norms ? (void *)&norm : &cap};
    const dim3 grid = {(uint32_t)gpu_at_most(schedule.tiles, l->multiprocessors), 1, 1},
               block = {SM90_THREADS, 1, 1};
    const int early = (rotates || looks ? l->follows_early : l->early) && !resets;
    return error == gpuSuccess
               ? gpu_launch_kernel(l->norms ? normed_of(p) : kernel_of(p), grid, block, arguments,
                                   gpu_sm90_shared(p), l->stream, early)
               : error;
}

gpuError_t gpu_sm90_launch(const gpu_sm90_call *l) {
    const rope_attention_problem *p = l->problem;
    const int looks = gpu_sm90_looks_at_pages(p);
    gpuError_t error = looks ? launch_pages(l) : gpuSuccess;
    if (error == gpuSuccess && gpu_sm90_rotates(p, l->call))
        error = launch_angles(l, looks ? l->follows_early : l->early);
    if (!gpu_attention_converts(p))
        return error == gpuSuccess ? attend(l, 1) : error;
    const size_t row = has_rows(l->call) ? (size_t)l->call->rope.tokens * gpu_sm90_angles(p) : 0;
    gpu_attention_part part = {0};
    for (int first = 1; error == gpuSuccess && gpu_attention_next_part(p, l->call, &part);
         first = 0) {
        const rope_attention_call call = gpu_attention_part_of(p, l->call, &part);
        gpu_sm90_call one = *l;
        one.call = &call;
        one.memory.failed += part.sequence;
        one.memory.angles = (char *)one.memory.angles + (size_t)part.sequence * row;
        error = attend(&one, first);
    }
    return error;
}
