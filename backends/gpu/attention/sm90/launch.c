/* The launches of a call. */
#include "backends/gpu/attention/sm90/call.h"

#include "backends/gpu/attention/gather.h"
#include "backends/gpu/attention/kernels.h"
#include "backends/gpu/candidate.h"
#include "backends/gpu/geometry.h"
#include "common/math/attention.h"

/* Tiles are dealt where no block has more of them. */
enum { ROUNDS = 4 };

/* Where blocks have so many tiles on average, they find them early. Of fewer ones, a tile that is
 * given out early keeps another block from it. */
enum { MANY_ROUNDS = 12 };

static sm90_positions positions_of(const rope_attention_problem *problem,
                                   const rope_attention_call *call, const gpu_sm90_memory *memory) {
    const rope_problem *r = &problem->rope;
    const rope_position_map *map = &call->rope.position;
    const int64_t tokens = call->rope.tokens;
    return (sm90_positions){.count = tokens * (sm90_has_rows(call) ? call->rope.batch : 1) *
                                     sm90_fours_of(r),
                            .fours = (int32_t)sm90_fours_of(r),
                            .tokens = (int32_t)tokens,
                            .negative = r->direction != ROPE_FORWARD,
                            .wide = map->wide,
                            .depends = sm90_stands_by_lengths(call),
                            .factor = (float)r->set[0].attention_factor,
                            .turns = r->set[0].turns,
                            .ids = map->ids,
                            .id_row = map->ids ? map->id_stride[1] : 0,
                            .id_token = map->id_stride[2],
                            .offset = map->ids || sm90_stands_by_lengths(call)
                                          ? map->offset
                                          : rope_sum(map->offset, call->k_tokens - tokens),
                            .angles = memory->angles,
                            .tickets = memory->tickets};
}

/* What is computed ahead: angles of p, if there are some, and whether there are all pages. */
static gpuError_t launch_ahead(const rope_attention_problem *problem,
                               const rope_attention_call *call, sm90_positions p, sm90_pages pages,
                               int early, gpuStream_t stream) {
    void *arguments[] = {&p, &pages, (void *)(uintptr_t)problem, (void *)(uintptr_t)call};
    const int64_t angles = gpu_divide_up(p.count, GPU_ATTENTION_THREADS),
                  lookers = pages.failed ? gpu_at_most(rope_attention_sequences(call), 65535) : 0;
    const dim3 grid = {(uint32_t)(angles + lookers > 0 ? angles + lookers : 1), 1, 1},
               block = {GPU_ATTENTION_THREADS, 1, 1};
    return gpu_launch_kernel(gpu_attention_sm90_ahead_kernel, grid, block, arguments, 0, stream,
                             early);
}

gpuError_t sm90_launch_angles(const rope_attention_problem *problem,
                              const rope_attention_call *call, void *angles, int early,
                              gpuStream_t stream) {
    const gpu_sm90_memory memory = {.angles = angles};
    return launch_ahead(problem, call, positions_of(problem, call, &memory), (sm90_pages){0}, early,
                        stream);
}

static sm90_norm norm_of(const gpu_sm90_norms *norms, int which) {
    return (sm90_norm){.weight = norms->operand[which].weight, .eps = norms->steps[which].eps};
}

/* Angles, and keys that they rotate. */
static gpuError_t launch_keys(const gpu_sm90_call *l, int early) {
    const rope_append_operand *k = &l->call->k;
    sm90_positions p = positions_of(l->problem, l->call, &l->memory);
    sm90_norm norm = l->norms ? norm_of(l->norms, 1) : (sm90_norm){0};
    sm90_keys_ahead keys = {.in = k->in,
                            .out = k->out,
                            .count = l->call->rope.batch * l->call->k_tokens,
                            .tokens = (int32_t)l->call->k_tokens,
                            .heads = (int32_t)k->heads};
    for (int i = 0; i < 3; i++) {
        keys.in_stride[i] = k->in_stride[i];
        keys.out_stride[i] = k->out_stride[i];
    }
    void *arguments[] = {&keys, &p, &norm};
    const dim3 grid = {(uint32_t)gpu_divide_up(keys.count * (p.fours / 2), SM90_KEY_THREADS),
                       (uint32_t)gpu_divide_up(keys.heads, SM90_HEADS_AHEAD), 1},
               block = {SM90_KEY_THREADS, 1, 1};
    return gpu_launch_kernel(gpu_attention_sm90_keys_kernels[l->problem->rope.dtype == ROPE_BF16],
                             grid, block, arguments, 0, l->stream, early);
}

/* Where a launch that looks at pages says that packed sequences are all left out, or NULL. */
static int32_t *none_of(const gpu_sm90_call *l) {
    return gpu_sm90_looks_at_pages(l->problem) && l->leaves_few && l->call->rope.position.cu_seqlens
               ? (int32_t *)l->memory.tickets + SM90_NONE_TICKET
               : NULL;
}

static sm90_pages pages_of(const gpu_sm90_call *l) {
    return (sm90_pages){
        .failed = l->memory.failed, .none = none_of(l), .few = l->leaves_few ? GPU_SPLIT_ROWS : 0};
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
static gpuError_t gather(const gpu_sm90_call *l, int32_t tall_from, rope_attention_call *rows) {
    const rope_attention_problem *p = l->problem;
    gpu_gathering how = gpu_attention_gathering(p, rows, l->memory.gathered, 1);
    how.few = l->leaves_few ? GPU_SPLIT_ROWS : 0;
    how.tile = sm90_keys_of_tile(p, 0);
    if (l->call->rope.tokens >= tall_from)
        how.tile *= 3; /* tall tiles end there, too */
    from_rows(&rows->k);
    from_rows(&rows->v);
    return gpu_attention_launch_gather(
        p, l->call, &how, gpu_attention_converts(p) ? CONVERTERS * l->multiprocessors : INT32_MAX,
        l->stream, l->follows_early);
}

/* Tickets become 0 by a launch that may start early and lets others, as no memset does. */
static gpuError_t launch_reset(const gpu_sm90_call *l, const rope_attention_call *call, int early) {
    return launch_ahead(l->problem, call, (sm90_positions){.tickets = l->memory.tickets},
                        (sm90_pages){0}, early, l->stream);
}

/* whole: the call of which this is a part; tall_from: of that; gathered: keys are; tall: tall tiles
 * alone; fresh: tickets are 0; two: launches; behind: the other one is ahead. */
typedef struct {
    const rope_attention_call *whole;
    int32_t tall_from;
    int gathered, tall, fresh, two, behind;
} sm90_part;

/* Maps of queries, keys, values and results; 0: the driver refuses. */
static int encode_maps(const rope_attention_problem *p, const rope_attention_call *call,
                       sm90_part part, int32_t page, int32_t pack, CUtensorMap maps[4]) {
    const sm90_view q = sm90_queries_of(p, call),
                    k = sm90_view_of(p, call, &call->k, p->head_dim, part.gathered),
                    v = sm90_view_of(p, call, &call->v, p->v_head_dim, part.gathered),
                    out = sm90_results_of(p, call);
    const int32_t dtype = p->rope.dtype, rows = part.tall ? SM90_TALL_ROWS : SM90_ROWS,
                  keys = page ? page : sm90_keys_of_tile(p, part.tall);
    return sm90_map_encode(&maps[0], dtype, &q, pack, rows / pack, 1) &&
           sm90_map_encode(&maps[1], dtype, &k, 1, keys, 1) &&
           sm90_map_encode(&maps[2], dtype, &v, 1, keys, 1) &&
           sm90_map_encode(&maps[3], dtype, &out, pack, 64 / pack, 1);
}

/* Keys of a copy from a page from which one warp is fast enough for all copies. */
enum { LARGE_PAGE = 128 };

static const void *kernel_of(const gpu_sm90_call *l, const rope_attention_call *call,
                             const sm90_schedule *schedule, int32_t spans, int tall) {
    const rope_attention_problem *p = l->problem;
    const int are_whole = !call->rope.position.cu_seqlens && !call->q_lengths,
              are_large = !schedule->page || schedule->page >= LARGE_PAGE;
    const void *const simple =
        schedule->simple && are_whole && are_large ? sm90_simple_of(p) : NULL;
    return l->norms ? sm90_normed_of(p)
           : spans  ? sm90_span_kernel_of(p)
           : simple ? simple
                    : sm90_kernel_of(p, tall);
}

static gpuError_t attend_part(const gpu_sm90_call *l, const rope_attention_call *call,
                              sm90_part part) {
    const rope_attention_problem *p = l->problem;
    const int looks = gpu_sm90_looks_at_pages(p), tall = part.tall;
    const int32_t *failed = looks ? l->memory.failed : l->failed,
                  page = part.gathered ? 0 : sm90_page_of(p, tall),
                  rows = tall ? SM90_TALL_ROWS : SM90_ROWS;
    sm90_schedule schedule =
        sm90_schedule_of(p, call, tall, page, failed, &l->memory, l->leaves_few);
    sm90_cap cap = p->soft_cap > 0 ? sm90_cap_of(p) : (sm90_cap){0};
    sm90_norm norm = l->norms ? norm_of(l->norms, 0) : (sm90_norm){0};
    schedule.none = none_of(l);
    schedule.tall_from = part.tall_from;
    schedule.behind = part.behind;
    CUtensorMap maps[4];
    if (!encode_maps(p, call, part, page, 1 << schedule.pack, maps))
        return cudaErrorInvalidValue;
    sm90_spans spans = l->norms
                           ? (sm90_spans){0}
                           : sm90_spans_of(p, part.whole, call, &l->memory, l->multiprocessors);
    const int spreads = spans.arrived != NULL;
    if (tall)
        spans = (sm90_spans){0};
    const int64_t items = (int64_t)schedule.tiles * (spans.arrived ? spans.most : 1);
    if (items <= ROUNDS * l->multiprocessors)
        schedule.tickets = NULL;
    schedule.early = !schedule.tickets || items >= MANY_ROUNDS * l->multiprocessors;
    sm90_schedule most = schedule;
    if (part.two) /* others are more */
        (void)sm90_count_tiles(call, SM90_ROWS, &most);
    const int rotates = schedule.rotation.pairs > 0,
              resets = !part.fresh && (most.tiles > ROUNDS * l->multiprocessors || spreads);
    schedule.ahead = rotates || looks || resets || part.behind;
    int early = rotates || looks || part.behind ? l->follows_early : l->early;
    gpuError_t error = gpuSuccess;
    if (resets) {
        error = launch_reset(l, call, early);
        early = l->follows_early;
    }
    void *arguments[] = {&maps[0],
                         &maps[1],
                         &maps[2],
                         &maps[3],
                         &schedule,
                         (void *)(uintptr_t)p,
                         (void *)(uintptr_t)call,
                         &failed,
                         l->norms     ? (void *)&norm
                         : spans.most ? (void *)&spans
                                      : &cap};
    const dim3 grid = {(uint32_t)gpu_at_most(items, l->multiprocessors), 1, 1},
               block = {128 + 2 * (uint32_t)rows, 1, 1};
    return error == gpuSuccess
               ? gpu_launch_kernel(kernel_of(l, call, &schedule, spans.most, tall), grid, block,
                                   arguments, sm90_shared_of(p, tall, schedule.tokens < 0),
                                   l->stream, early)
               : error;
}

/* whole: the call of which this is a part; first: the first launch of its call with these tickets.
 * Where numbers of queries lie on the device a launch of the other tiles follows, which may have
 * none. */
static gpuError_t attend(const gpu_sm90_call *l, const rope_attention_call *whole, int first) {
    const int32_t tall_from = sm90_tall_from(l->problem, whole);
    const int64_t tokens = l->call->rope.tokens;
    const int may = tokens >= tall_from,
              two = may && (l->call->rope.position.cu_seqlens || l->call->q_lengths);
    rope_attention_call call = *l->call;
    sm90_part part = {.whole = whole,
                      .tall_from = tall_from,
                      .gathered = sm90_gathers(l->problem, l->call),
                      .tall = may && l->call->rope.batch * tokens >=
                                         tall_from * rope_attention_sequences(l->call),
                      .fresh = first && (gpu_sm90_rotates(l->problem, l->call) ||
                                         gpu_sm90_looks_at_pages(l->problem)),
                      .two = two};
    gpuError_t error = part.gathered ? gather(l, tall_from, &call) : gpuSuccess;
    if (error == gpuSuccess)
        error = attend_part(l, &call, part);
    part.tall = !part.tall;
    part.fresh = part.behind = 1;
    return error == gpuSuccess && two ? attend_part(l, &call, part) : error;
}

gpuError_t gpu_sm90_launch(const gpu_sm90_call *l) {
    const rope_attention_problem *p = l->problem;
    const int looks = gpu_sm90_looks_at_pages(p), rotates = gpu_sm90_rotates(p, l->call),
              keys = rotates && l->keys_too;
    sm90_positions positions = rotates && !keys ? positions_of(p, l->call, &l->memory)
                                                : (sm90_positions){.tickets = l->memory.tickets};
    gpuError_t error = gpuSuccess;
    if (looks || positions.count > 0)
        error = launch_ahead(p, l->call, positions, looks ? pages_of(l) : (sm90_pages){0}, l->early,
                             l->stream);
    if (keys && error == gpuSuccess)
        error = launch_keys(l, looks ? l->follows_early : l->early);
    if (!sm90_gathers(p, l->call))
        return error == gpuSuccess ? attend(l, l->call, 1) : error;
    const size_t row =
        sm90_has_rows(l->call) ? (size_t)l->call->rope.tokens * gpu_sm90_angles(p) : 0;
    gpu_attention_part part = {0};
    for (int first = 1; error == gpuSuccess && gpu_attention_next_part(p, l->call, &part);
         first = 0) {
        const rope_attention_call call = gpu_attention_part_of(p, l->call, &part);
        gpu_sm90_call one = *l;
        one.call = &call;
        one.memory.failed += part.sequence;
        one.memory.angles = (char *)one.memory.angles + (size_t)part.sequence * row;
        error = attend(&one, l->call, first);
    }
    return error;
}
