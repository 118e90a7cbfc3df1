/*
 * Sequences of few queries are read in splits of their keys where the plan has kernels for that,
 * the others in tiles of their rows. The host may not know the queries of a sequence: then both are
 * launched, and each leaves the other's sequences alone.
 */
#include "backends/gpu/attention/choose.h"

#include "backends/gpu/attention/gather.h"
#include "backends/gpu/attention/launch.h"
#include "backends/gpu/attention/prologue.h"
#include "backends/gpu/attention/sm90.h"
#include "backends/gpu/attention/workspace.h"
#include "common/math/attention.h"

#include <string.h>

/* --- the kernels of a plan --- */

static gpu_attention_function generic_of(const gpu_attention_state *state, int few) {
    const int32_t rows = gpu_generic_rows_of(state->problem.rope.dtype, state->generic, few);
    return (gpu_attention_function){(*state->generics)[few][state->generic], rows,
                                    gpu_generic_shared(rows, gpu_generic_dim(state->generic))};
}

static gpu_attention_function tiles_of(const gpu_attention_state *state, int32_t kernel) {
    const gpu_attention_kernels *kernels = state->kernels;
    const int32_t tiles = state->tiles, rows = gpu_tile_rows_of(tiles);
    switch (kernel) {
    case GPU_ATTEND_TILES:
        return (gpu_attention_function){kernels->tiles[tiles], rows, gpu_tiles_shared(tiles)};
    case GPU_ATTEND_PROMPT:
        return (gpu_attention_function){kernels->prompt[tiles], rows, gpu_prompt_shared(tiles)};
    case GPU_ATTEND_SM90:
        return (gpu_attention_function){state->sm90, GPU_SM90_ROWS,
                                        gpu_sm90_shared(&state->problem)};
    case GPU_ATTEND_SPLITS:
        return (gpu_attention_function){kernels->splits[tiles], GPU_SPLIT_ROWS,
                                        gpu_splits_shared(tiles)};
    case GPU_ATTEND_DECODE:
        return (gpu_attention_function){kernels->decode[tiles], GPU_SPLIT_ROWS,
                                        gpu_splits_shared(tiles)};
    case GPU_JOIN_DECODE:
        return (gpu_attention_function){kernels->decode_join[tiles], 0, 0};
    default:
        return (gpu_attention_function){0};
    }
}

gpu_attention_function gpu_attention_function_of(const gpu_attention_state *state, int32_t kernel) {
    const int is_split = kernel == GPU_ATTEND_SPLITS || kernel == GPU_ATTEND_DECODE,
              is_generic = kernel == GPU_ATTEND_GENERIC || kernel == GPU_ATTEND_GENERIC_FEW;
    if (kernel == GPU_JOIN_SPLITS)
        return (gpu_attention_function){state->kernels->join, 0, 0};
    if (kernel == GPU_ATTEND_LATENT)
        return (gpu_attention_function){state->latent ? state->latent[0] : NULL,
                                        GPU_SM90_LATENT_ROWS, GPU_SM90_LATENT_SHARED};
    if (state->wide_heads)
        return kernel == GPU_ATTEND_WIDE_HEADS
                   ? (gpu_attention_function){state->kernels->wide_heads, GPU_LATENT_ROWS,
                                              gpu_latent_shared()}
                   : (gpu_attention_function){0};
    if (state->tiles == GPU_GENERIC)
        return is_generic ? generic_of(state, kernel == GPU_ATTEND_GENERIC_FEW)
                          : (gpu_attention_function){0};
    return is_split && !state->splits ? (gpu_attention_function){0} : tiles_of(state, kernel);
}

static int has(const gpu_attention_state *state, int32_t kernel) {
    return gpu_attention_function_of(state, kernel).symbol != NULL;
}

/* --- what a call has --- */

/* Whether places in the cache are, and what lies there; of one head or one block its stride does
 * not count. */
static int are_cached_alike(const rope_attention_problem *p, const rope_attention_call *call) {
    const int64_t *k = call->k.cache_stride, *v = call->v.cache_stride;
    const int blocks = p->k.dim_block < p->head_dim || p->v.dim_block < p->v_head_dim;
    return call->k.cache == call->v.cache && k[0] == v[0] && k[1] == v[1] && k[4] == v[4] &&
           (call->k.heads == 1 || k[2] == v[2]) &&
           (!blocks || (k[3] == v[3] && p->k.dim_block == p->v.dim_block)) &&
           p->k.store_dtype == p->v.store_dtype && p->k.scale == p->v.scale &&
           call->k.scale == call->v.scale &&
           !memcmp(call->k.scale_stride, call->v.scale_stride, sizeof call->k.scale_stride);
}

int gpu_attention_are_same(const rope_attention_problem *p, const rope_attention_call *call) {
    const rope_append_operand *k = &call->k, *v = &call->v;
    if (v->out) /* gathered */
        return k->out == v->out;
    if (k->out || !k->in != !v->in || p->v_head_dim > p->head_dim)
        return 0;
    return k->in ? k->in == v->in && !memcmp(k->in_stride, v->in_stride, sizeof k->in_stride)
                 : are_cached_alike(p, call);
}

static int32_t fits_of(const gpu_attention_state *state, const rope_attention_call *call) {
    const rope_attention_problem *p = &state->problem;
    const rope_operand *q = &call->rope.tensor[0];
    const int64_t batch = call->rope.batch, tokens = call->rope.tokens,
                  *stride = q->out ? q->out_stride : q->in_stride;
    const int fills = state->wide_heads ||
                      (state->tiles != GPU_GENERIC && p->v_head_dim == gpu_tile_dim(state->tiles)),
              k = gpu_moves_operand(p, &p->k, call, &call->k),
              v = gpu_moves_operand(p, &p->v, call, &call->v);
    int32_t fits = (k ? GPU_TILE_K : 0) | (v ? GPU_TILE_V : 0);
    if (gpu_moves_head(q->out ? q->out : q->in, stride, batch, tokens, q->heads, 16, p->rope.dtype))
        fits |= GPU_TILE_Q;
    if (fills &&
        gpu_moves_head(call->out, call->out_stride, batch, tokens, q->heads, 4, p->rope.dtype))
        fits |= GPU_TILE_OUT;
    if (k && v && state->wide_heads && gpu_attention_are_same(p, call))
        fits |= GPU_TILE_SAME;
    if (!k && gpu_moves_cache(p, &p->k, call, &call->k))
        fits |= GPU_TILE_K_STORED;
    if (!v && gpu_moves_cache(p, &p->v, call, &call->v))
        fits |= GPU_TILE_V_STORED;
    return fits;
}

/* Whether heads have as many elements as a kernel of tiles has room for. */
static int fills(const gpu_attention_state *state) {
    const int32_t dim = gpu_tile_dim(state->tiles);
    return state->problem.head_dim == dim && state->problem.v_head_dim == dim;
}

/* Whether it is one of those that prompt.h says. */
static int is_prompt(const gpu_attention_state *state, const rope_attention_call *call,
                     int32_t fits) {
    const rope_attention_problem *p = &state->problem;
    const rope_operand *q = &call->rope.tensor[0];
    const int64_t most = INT32_MAX - (1 << 16);
    return has(state, GPU_ATTEND_PROMPT) && fills(state) &&
           (fits & GPU_TILE_VECTORS) == GPU_TILE_VECTORS &&
           gpu_moves_head(call->out, call->out_stride, call->rope.batch, call->rope.tokens,
                          q->heads, 16, p->rope.dtype) &&
           !(p->soft_cap > 0) && p->mask != ROPE_MASK_TREE && !p->ring &&
           !(p->rotates[0] && p->rope.angle_mode == ROPE_ANGLE_TABLE &&
             p->rope.out_of_range == ROPE_OUT_OF_RANGE_ERROR) &&
           q->heads <= most && call->rope.tokens <= most / (q->heads / call->k.heads) &&
           rope_attention_capacity(p, call) <= most && (!p->cache || p->page_size <= most);
}

/* --- the choice --- */

/* Whether it is one of those that decode.h says. */
static int is_decode(const gpu_attention_state *state, const rope_attention_call *call,
                     int32_t fits) {
    return has(state, GPU_ATTEND_DECODE) && !gpu_attention_may_fail(&state->problem) &&
           (fits & GPU_TILE_VECTORS) == GPU_TILE_VECTORS && gpu_decode_fits(&state->problem, call);
}

/* Whether sequences that are packed may be of one query in part: else a launch for those, which has
 * the bits of splits, is not worth its time. */
static int may_have_ones(const rope_attention_call *call) {
    const int64_t sequences = rope_attention_sequences(call);
    return sequences > 1 || call->rope.tokens == 1;
}

/* Blocks of a multiprocessor where lengths that lie on the device decide whether there is work. */
enum { BLOCKS_EACH = 4 };

/* The kernel of sm_90a in the place of wide_heads, which joins its splits. */
static void take_latent(const gpu_attention_state *state, const rope_attention_call *call,
                        gpu_attention_choice *c) {
    const rope_attention_problem *p = &state->problem;
    const int64_t group = call->rope.tensor[0].heads / call->k.heads,
                  each = GPU_SM90_LATENT_BLOCKS(group);
    const int64_t splits = gpu_splits_most(p, call->k_tokens, GPU_SM90_LATENT_LONGER),
                  blocks = c->few.x / c->parts.splits / GPU_LATENT_TILES(group) * splits * each;
    if (!state->latent || !gpu_sm90_latent_fits(p, call, c->few.fits, blocks))
        return;
    c->few.kernel = GPU_ATTEND_LATENT;
    c->few.x = blocks;
    c->parts.splits = splits;
}

/* all: no sequence has more queries. */
static void choose_few(const gpu_attention_state *state, const rope_attention_call *call, int all,
                       int32_t fits, gpu_attention_choice *c) {
    const int64_t group = call->rope.tensor[0].heads / call->k.heads,
                  queries = gpu_split_queries(state, group), tokens = call->rope.tokens;
    c->parts.queries = tokens < queries ? tokens : queries;
    const int packed = call->rope.position.cu_seqlens != NULL,
              decodes = is_decode(state, call, fits);
    const int64_t each = state->wide_heads ? c->parts.queries * GPU_LATENT_TILES(group) : 1,
                  blocks = rope_attention_sequences(call) * c->parts.splits * call->k.heads * each;
    const int32_t kernel = state->wide_heads             ? GPU_ATTEND_WIDE_HEADS
                           : state->tiles == GPU_GENERIC ? GPU_ATTEND_GENERIC_FEW
                           : all && !packed && decodes   ? GPU_ATTEND_DECODE
                                                         : GPU_ATTEND_SPLITS;
    const int by_heads = kernel == GPU_ATTEND_DECODE && fills(state) && has(state, GPU_JOIN_DECODE);
    c->few = (gpu_attending){kernel, fits | GPU_TILE_BY_SPLITS, 0, blocks, 1};
    c->ones = c->parts.leaves_ones = packed && decodes && may_have_ones(call);
    if ((!all || c->ones) && kernel == GPU_ATTEND_SPLITS &&
        blocks > BLOCKS_EACH * state->on.multiprocessors) {
        c->parts.skips = 1; /* maybe no sequence is split */
        c->few.x = BLOCKS_EACH * state->on.multiprocessors;
    }
    if (kernel == GPU_ATTEND_WIDE_HEADS)
        take_latent(state, call, c);
    if (c->parts.splits > 1 && c->few.kernel != GPU_ATTEND_LATENT)
        c->join = by_heads ? GPU_JOIN_DECODE : GPU_JOIN_SPLITS;
}

static int64_t tiles_for(const gpu_attention_state *state, const rope_attention_call *call,
                         int32_t kernel) {
    const int64_t rows = gpu_attention_function_of(state, kernel).rows,
                  group = call->rope.tensor[0].heads / call->k.heads,
                  each = state->wide_heads ? GPU_LATENT_TILES(group) * rows : group;
    return gpu_tiles_of(rope_attention_sequences(call), call->rope.position.cu_seqlens != NULL,
                        call->rope.tokens * each, rows);
}

/* Blocks have a tile of one key head. */
static gpu_attending choose_flat(const gpu_attention_state *state, const rope_attention_call *call,
                                 int32_t fits) {
    int32_t kernel = state->wide_heads ? GPU_ATTEND_WIDE_HEADS : GPU_ATTEND_GENERIC;
    int64_t blocks = tiles_for(state, call, kernel) * call->k.heads;
    if (kernel == GPU_ATTEND_GENERIC && blocks < 2 * state->on.multiprocessors) {
        kernel = GPU_ATTEND_GENERIC_FEW; /* smaller blocks, of which all have several */
        blocks = tiles_for(state, call, kernel) * call->k.heads;
    }
    return (gpu_attending){kernel, fits, 0, blocks, 1};
}

static gpu_attending choose_tiles(const gpu_attention_state *state, const rope_attention_call *call,
                                  int32_t fits) {
    gpu_attending a = {GPU_ATTEND_TILES, fits, 0, tiles_for(state, call, GPU_ATTEND_TILES),
                       call->k.heads};
    if (state->sm90 && gpu_sm90_fits(&state->problem, call)) {
        a.kernel = GPU_ATTEND_SM90;
        return a;
    }
    a.parts =
        gpu_attention_converts(&state->problem) && gpu_attention_gathers(&state->problem, call, 1);
    if (a.parts)
        a.fits |= gpu_attention_gathered_fits(&state->problem, call);
    if (a.x <= INT32_MAX / 2 && is_prompt(state, call, a.fits)) {
        a.kernel = GPU_ATTEND_PROMPT;
        a.fits |= gpu_attention_starts_all(a.x, a.y) ? GPU_TILE_ONCE : 0;
    }
    return a;
}

static void choose(const gpu_attention_state *state, const rope_attention_call *call,
                   gpu_attention_choice *choice) {
    const gpu_attention_sizes sizes = gpu_attention_sizes_of(&state->problem, call);
    const int64_t group = sizes.q_heads / sizes.k_heads;
    const int varies = call->rope.position.cu_seqlens || call->q_lengths,
              few = gpu_attention_few(state, &sizes),
              splits = few || (varies && gpu_split_queries(state, group) > 0);
    const int32_t fits = fits_of(state, call);
    *choice =
        (gpu_attention_choice){.parts.splits = gpu_splits_most(&state->problem, call->k_tokens, 0)};
    if (sizes.sequences < 1)
        return;
    if (splits)
        choose_few(state, call, few, fits, choice);
    if (!few)
        choice->rest = state->tiles == GPU_GENERIC
                           ? choose_flat(state, call, fits)
                           : choose_tiles(state, call, fits | (splits ? GPU_TILE_LEAVES_FEW : 0));
}

void gpu_attention_choose(const gpu_attention_state *state, const rope_attention_call *call,
                          gpu_attention_choice *choice) {
    const rope_attention_problem *p = &state->problem;
    const int gathers = state->wide_heads && gpu_attention_gathers_for_all(p, call);
    rope_attention_call rows = *call;
    gpu_attention_part part = {0};
    if (gathers && gpu_attention_next_part(p, call, &part)) {
        rows = gpu_attention_part_of(p, call, &part);
        /* wherever they will be */
        (void)gpu_attention_gathering(p, &rows, (void *)(uintptr_t)GPU_WORKSPACE_ALIGNMENT, 0);
    }
    choose(state, &rows, choice);
    choice->gathers = gathers;
}

int gpu_attention_rotates_queries(const gpu_attention_state *state,
                                  const rope_attention_call *call) {
    const gpu_attention_sizes sizes = gpu_attention_sizes_of(&state->problem, call);
    if (!gpu_attention_rotates_ahead(state, &sizes))
        return 1;
    return state->sm90 && gpu_sm90_fits(&state->problem, call);
}

#define NAME(kernels) GPU_BACKEND_NAME ":" kernels

const char *gpu_attention_name(const gpu_attention_choice *choice) {
    static const char *const alone[GPU_ATTEND_KERNELS] = {
        [GPU_ATTEND_GENERIC] = NAME("generic"),       [GPU_ATTEND_GENERIC_FEW] = NAME("generic"),
        [GPU_ATTEND_WIDE_HEADS] = NAME("wide_heads"), [GPU_ATTEND_TILES] = NAME("tiles"),
        [GPU_ATTEND_PROMPT] = NAME("prompt"),         [GPU_ATTEND_SPLITS] = NAME("splits"),
        [GPU_ATTEND_DECODE] = NAME("decode"),         [GPU_ATTEND_SM90] = NAME("sm90"),
        [GPU_ATTEND_LATENT] = NAME("latent"),
    };
    static const char *const behind_splits[GPU_ATTEND_KERNELS] = {
        [GPU_ATTEND_NONE] = NAME("splits"),
        [GPU_ATTEND_TILES] = NAME("splits+tiles"),
        [GPU_ATTEND_PROMPT] = NAME("splits+prompt"),
        [GPU_ATTEND_SM90] = NAME("splits+sm90"),
    };
    static const char *const behind_ones[GPU_ATTEND_KERNELS] = {
        [GPU_ATTEND_NONE] = NAME("decode+splits"),
        [GPU_ATTEND_TILES] = NAME("decode+splits+tiles"),
        [GPU_ATTEND_PROMPT] = NAME("decode+splits+prompt"),
        [GPU_ATTEND_SM90] = NAME("decode+splits+sm90"),
    };
    const int32_t few = choice->few.kernel, rest = choice->rest.kernel;
    if (choice->ones)
        return behind_ones[rest];
    return few == GPU_ATTEND_SPLITS ? behind_splits[rest] : alone[rest ? rest : few];
}
