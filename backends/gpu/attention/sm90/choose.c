/* Which kernel a problem has, and which calls it takes. */
#include "backends/gpu/attention/sm90/call.h"

#include "backends/gpu/attention/gather.h"
#include "backends/gpu/attention/prologue.h"
#include "backends/gpu/candidate.h"
#include "backends/gpu/geometry.h"
#include "common/math/attention.h"

#include <float.h>
#include <math.h>

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

/* Elements of queries beyond which a pass over them takes longer than the launch that has angles. A
 * pass that looks for lengths is long. */
enum { LONG_PASS = 1 << 22 };

int sm90_has_angles(const rope_problem *r) {
    return r->angle_mode == ROPE_ANGLE_EXACT && r->axes == 1 && r->frequency_sets == 1 &&
           !r->xpos_rate && r->pairing_in == ROPE_PAIRING_HALF_SPLIT &&
           r->pairing_out == ROPE_PAIRING_HALF_SPLIT && r->arithmetic == ROPE_ARITHMETIC_FP32 &&
           r->pairs % 8 == 0 && r->rotary_offset[0] % 8 == 0 && r->rotary_offset[1] % 8 == 0;
}

/* Keys behind which the rotation of a tile's queries is hidden where each row has its own angles.
 */
enum { LONG_ENOUGH = 4096 };

/* Whether queries are rotated in shared memory: where they are copied a tile ahead, and rows share
 * angles or keys or a pass ahead would look for lengths. */
static int rotates_here(const rope_attention_problem *p, const rope_attention_call *call) {
    const int64_t shares = call->rope.tensor[0].heads / call->k.heads;
    return GPU_SM90_QUERIES(room_of(p).dim) == 2 &&
           (sm90_pack_of(shares) > 0 || (shares > 1 && call->k_tokens >= LONG_ENOUGH) ||
            sm90_stands_by_lengths(call)) &&
           (sm90_stands_by_lengths(call) ||
            call->rope.tensor[0].heads * call->rope.tokens * call->rope.batch * p->head_dim >
                LONG_PASS) &&
           sm90_has_angles(&p->rope) && !call->rope.position.offsets;
}

int gpu_sm90_rotates(const rope_attention_problem *p, const rope_attention_call *call) {
    return p->rotates[0] && !call->rope.tensor[0].out;
}

int gpu_sm90_writes(const rope_attention_problem *p, const rope_attention_call *call,
                    const rope_operand *rotated) {
    return rotated->out != rotated->in && 2 * p->rope.pairs == p->head_dim && !p->cache &&
           gpu_moves_head(rotated->out, rotated->out_stride, call->rope.batch, call->rope.tokens,
                          rotated->heads, 16, p->rope.dtype) &&
           gpu_sm90_fits(p, call);
}

size_t gpu_sm90_angles(const rope_attention_problem *p) {
    return p->rotates[0] && sm90_has_angles(&p->rope)
               ? (size_t)sm90_fours_of(&p->rope) * 8 * sizeof(float)
               : 0;
}

int32_t sm90_keys_of_tile(const rope_attention_problem *p, int tall) {
    return tall ? SM90_TALL_KEYS : GPU_SM90_KEYS(room_of(p).dim);
}

int32_t sm90_page_of(const rope_attention_problem *p, int tall) {
    int64_t page = p->page_size, rest = sm90_keys_of_tile(p, tall);
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
enum { GATHER_ROWS = 2048, GATHER_PAGE = 32, GATHER_ROWS_OF_ANY = 16384 };

static int pays(const rope_attention_problem *p, double rows) {
    return p->cache == ROPE_CACHE_TABLE &&
           rows >= (sm90_page_of(p, 0) <= GATHER_PAGE ? GATHER_ROWS : GATHER_ROWS_OF_ANY);
}

/* Smaller calls may have fewer heads of k, hence more rows of each. */
int gpu_sm90_may_gather(const rope_attention_problem *p, const gpu_attention_sizes *s) {
    return pays(p, (double)s->tokens * (double)s->q_heads);
}

int sm90_gathers(const rope_attention_problem *p, const rope_attention_call *call) {
    const int64_t shares = call->rope.tensor[0].heads / call->k.heads;
    return (gpu_attention_converts(p) || pays(p, (double)call->rope.tokens * (double)shares)) &&
           gpu_attention_gathers(p, call, 0);
}

/* Lanes that copy a tile of keys from a table's pages, each 64 elements of some keys. */
enum { LANES = 32 };

static int takes_pages(const rope_attention_problem *p) {
    const int32_t page = sm90_page_of(p, 0), dim = room_of(p).dim;
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

static int may_be_tall(const rope_attention_problem *p) {
    return heads_of(p) == SM90_64 && !(p->soft_cap > 0);
}

/* Tiles of a sequence from which tall ones are faster: so many of all heads, two for each
 * multiprocessor of an H100, and so many of a head, as the last one may have few rows. */
enum { TALL_TILES = 256, TALL_STEPS = 16 };

int32_t sm90_tall_from(const rope_attention_problem *p, const rope_attention_call *call) {
    const int64_t heads = call->rope.tensor[0].heads,
                  all = gpu_divide_up(TALL_TILES * SM90_TALL_ROWS, heads),
                  each = TALL_STEPS * SM90_TALL_ROWS >> sm90_pack_of(heads / call->k.heads);
    return !may_be_tall(p) ? (int32_t)SM90_FAR : (int32_t)(all > each ? all : each);
}

const void *sm90_kernel_of(const rope_attention_problem *p, int tall) {
    if (tall)
        return gpu_attention_sm90_tall_kernels[p->rope.dtype == ROPE_BF16];
    return (p->soft_cap > 0 ? gpu_attention_sm90_cap_kernels
                            : gpu_attention_sm90_kernels)[heads_of(p)][p->rope.dtype == ROPE_BF16];
}

const void *sm90_simple_of(const rope_attention_problem *p) {
    return heads_of(p) == SM90_128 && !(p->soft_cap > 0)
               ? gpu_attention_sm90_simple_kernels[p->rope.dtype == ROPE_BF16]
               : NULL;
}

const void *sm90_span_kernel_of(const rope_attention_problem *p) {
    const int heads = heads_of(p);
    return heads < SM90_192 && !(p->soft_cap > 0)
               ? gpu_attention_sm90_span_kernels[heads][p->rope.dtype == ROPE_BF16]
               : NULL;
}

const void *sm90_normed_of(const rope_attention_problem *p) {
    return p->head_dim == 128 && heads_of(p) == SM90_128 && p->rope.pairs == 64 && p->rotates[1] &&
                   !(p->soft_cap > 0)
               ? gpu_attention_sm90_norm_kernels[p->rope.dtype == ROPE_BF16]
               : NULL;
}

/* By a polynomial that has tanh(x) within 1.2e-7 of itself for x up to 0.75. */
sm90_cap sm90_cap_of(const rope_attention_problem *p) {
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
    const float last = p->soft_cap > 0 ? fabsf(sm90_cap_of(p).near[5]) : 1;
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
    return major == 9 && minor == 0 ? sm90_kernel_of(p, 0) : NULL;
}

int32_t sm90_shared_of(const rope_attention_problem *p, int tall, int depends) {
    return GPU_SM90_SHARED(room_of(p).dim, room_of(p).v_dim, tall ? SM90_TALL_ROWS : SM90_ROWS,
                           sm90_keys_of_tile(p, tall)) +
           (may_be_tall(p) && depends ? SM90_SIGHT : 0);
}

int32_t gpu_sm90_shared(const rope_attention_problem *p) {
    return sm90_shared_of(p, may_be_tall(p), 1);
}

gpuError_t gpu_sm90_load(const rope_attention_problem *p) {
    const int is_bf16 = p->rope.dtype == ROPE_BF16;
    const void *const other = may_be_tall(p) ? sm90_kernel_of(p, 1) : sm90_normed_of(p);
    const void *const kernels[] = {other,
                                   sm90_simple_of(p),
                                   sm90_span_kernel_of(p),
                                   sm90_kernel_of(p, 0),
                                   gpu_attention_sm90_keys_kernels[is_bf16],
                                   gpu_attention_sm90_ahead_kernel};
    int32_t early;
    gpuError_t error = gpu_kernels_load(kernels, sizeof kernels / sizeof kernels[0], &early);
    for (int i = 0; i < 3 && error == gpuSuccess; i++)
        if (kernels[i])
            error = gpu_allow_shared(kernels[i], gpu_sm90_shared(p));
    return error;
}

int gpu_sm90_fits(const rope_attention_problem *p, const rope_attention_call *call) {
    const sm90_view views[] = {sm90_queries_of(p, call), sm90_results_of(p, call),
                               sm90_view_of(p, call, &call->k, p->head_dim, 0),
                               sm90_view_of(p, call, &call->v, p->v_head_dim, 0)};
    const int converts = gpu_attention_converts(p);
    if (p->rotates[0] && p->rope.angle_mode == ROPE_ANGLE_TABLE &&
        p->rope.out_of_range == ROPE_OUT_OF_RANGE_ERROR)
        return 0; /* a query may have no position */
    if (gpu_sm90_rotates(p, call) && !rotates_here(p, call))
        return 0;
    if (p->cache && rope_attention_capacity(p, call) > INT32_MAX / 2)
        return 0;
    if (converts && (!sm90_gathers(p, call) || !gpu_moves_cache(p, &p->k, call, &call->k) ||
                     !gpu_moves_cache(p, &p->v, call, &call->v)))
        return 0;
    for (int i = 0; i < (converts ? 2 : 4); i++)
        if (!sm90_map_fits(&views[i]))
            return 0;
    return sm90_count_tiles(
        call, SM90_ROWS,
        &(sm90_schedule){.pack = sm90_pack_of(call->rope.tensor[0].heads / call->k.heads)});
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
int gpu_sm90_rotates_keys(const rope_attention_problem *p, const rope_attention_call *call) {
    const sm90_view in = {call->k.in,     call->k.in_stride, call->k.in_stride[3], call->rope.batch,
                          call->k_tokens, call->k.heads,     p->head_dim};
    return gpu_sm90_rotates(p, call) && p->rotates[1] && 2 * p->rope.pairs == p->head_dim &&
           call->k.in && !sm90_depends(call) && gpu_attention_stands_alike(call) &&
           call->k.heads <= SM90_HEADS_AHEAD * GPU_GENERIC_Y_MOST && sm90_map_fits(&in);
}

int gpu_sm90_normalises(const rope_attention_problem *p, const rope_attention_call *call,
                        const gpu_sm90_norms *norms, int multiprocessors) {
    return sm90_normed_of(p) && gpu_sm90_rotates_keys(p, call) && takes_norm(p, norms, 0) &&
           takes_norm(p, norms, 1) && !sm90_has_spans(p, call, multiprocessors);
}
