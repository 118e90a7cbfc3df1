/*
 * Goes through a slice of a call: reads tokens, fills their cos/sin rows, and hands their heads to
 * the instance that fits. Compiled once; vectors are in the instances alone.
 */
#include "backends/cpu/partition.h"
#include "backends/cpu/rope/head.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

enum {
    TOKENS = 4
}; /* whose rows are filled together where a head of theirs is nearer than the next head */
/* Bytes of staged heads, of one at most, and heads that are whole lines at most. */
enum { STAGE = 12288, STAGED_HEAD = 768, MOST_OF_LINES = 16 };

/* Where the driver stands in the tokens of one batch row. */
typedef struct run {
    const cpu_kernel *kernel;
    const rope_problem *problem;
    const rope_call *call;
    const cpu_slice *slice;
    int64_t batch, index, last;
    int64_t token_stride; /* from a token to the next of those that rotate together */
    int consecutive;      /* positions are the offset plus the index, and nothing else differs */
    int in_pairs;         /* one cos and sin rotate each pair where it is */
    cpu_heads heads[2];   /* of q and k, at the token that is next */
    cpu_rotate_heads rotate[2]; /* NULL: elements are strided, or too many for rows */
    int stage[2];               /* heads go around the cache by way of the L1 */
    int together;               /* q and k, by one call */
    rope_token token[TOKENS];
    cpu_cos_sin_row row[TOKENS];
    cpu_row_buffer buffer;
} run;

static int is_consecutive(const rope_problem *p, const rope_call *call) {
    const rope_position_map *map = &call->position;
    return !map->ids && !map->cu_seqlens && !map->offsets && map->shard == ROPE_SHARD_NONE &&
           p->axes == 1 && p->frequency_sets == 1 && p->angle_mode != ROPE_ANGLE_TABLE;
}

/* Streaming stores need aligned vectors. Three roundings for each result of 16 bits take as long as
 * they save. */
static int can_stream(const rope_problem *p, const cpu_heads *h, int lanes) {
    const uintptr_t lines = (uintptr_t)h->out | (uintptr_t)h->out_stride | (uintptr_t)h->out_step |
                            (uintptr_t)(h->before | h->after);
    return lines % (4 * (uintptr_t)lanes) == 0 && p->pairs % lanes == 0 && h->in != h->out;
}

/* Heads that are whole lines. */
static int64_t heads_of_lines(int64_t head) {
    int64_t heads = 1;
    while (heads * head % 64)
        heads *= 2;
    return heads;
}

/* A token's heads lie side by side from line to line, and a stage has room for whole lines. Less
 * than 1 KiB would be read back while it is written. */
static int can_stage(const cpu_heads *h, int64_t head) {
    const int64_t token = h->count * head;
    const uintptr_t lines =
        (uintptr_t)(h->out - h->before) | (uintptr_t)h->out_step | (uintptr_t)token;
    return lines % 64 == 0 && h->out_stride == head && h->in != h->out &&
           h->in_stride <= h->in_step && token >= 1024 && head <= STAGED_HEAD &&
           heads_of_lines(head) <= MOST_OF_LINES;
}

/* From a head to that which is prefetched: `bytes` ahead in whole heads, within a token where it
 * has as many, or to another token. */
static int64_t ahead_of(int64_t bytes, int64_t head, int64_t heads, int64_t stride, int64_t step,
                        int in_parts) {
    const int64_t count = bytes > head ? bytes / head : 1;
    /* One head of some tokens is followed by the same head of the next ones. */
    if (stride > step && !(in_parts && heads > 1))
        return (int64_t)((uint64_t)step * TOKENS);
    return heads > count ? stride * count : (int64_t)((uint64_t)step * (uint64_t)(count / heads));
}

static void set_prefetch(int64_t bytes, int64_t head, int in_parts, cpu_heads *h) {
    if (!bytes)
        return;
    h->in_ahead = ahead_of(bytes, head, h->count, h->in_stride, h->in_step, in_parts);
    h->out_ahead = ahead_of(bytes, head, h->count, h->out_stride, h->out_step, in_parts);
}

/* How a call goes through memory that exceeds the cache. Into the L2 only several heads of 64 pairs
 * gained by a prefetch. */
static void set_beyond_cache(run *r, int index, int size, int64_t head) {
    const rope_problem *p = r->problem;
    const cpu_prefetch_policy *policy = r->slice->policy;
    const int lanes = r->kernel->rows->lanes;
    cpu_heads *h = &r->heads[index];
    if (size == 4 || p->arithmetic != ROPE_ARITHMETIC_MODEL_DTYPE) {
        h->stream = can_stream(p, h, lanes);
        r->stage[index] = lanes > 4 && !h->stream && can_stage(h, head);
    }
    h->into_l2 = policy->into_l2;
    if (!policy->into_l2 || (p->pairs == 64 && h->count > 1))
        set_prefetch(policy->ahead[size == 4], head, policy->streams > 1, h);
}

/* How whole windows go through a cache that holds the call. */
static void set_within_cache(run *r, cpu_heads *h, int64_t window) {
    const cpu_prefetch_policy *policy = r->slice->policy;
    const int no_writes =
                  policy->no_write_prefetch && (r->problem->pairs == 32 || r->problem->pairs == 64),
              single = r->call->tensor[0].heads + r->call->tensor[1].heads == 1;
    set_prefetch(policy->within, window, 0, h);
    if (no_writes)
        h->out_ahead = 0;
    if (no_writes && single)
        h->in_ahead = 0;
}

/* A tensor at the first token of a run. */
static void begin_tensor(run *r, int index) {
    const rope_problem *p = r->problem;
    const rope_operand *operand = &r->call->tensor[index];
    const cpu_slice *slice = r->slice;
    const int size = cpu_dtype_size(p->dtype), offset = p->rotary_offset[index] * size;
    const int64_t window = 2 * (int64_t)p->pairs * size;
    cpu_heads *h = &r->heads[index];
    h->count = operand->heads ? slice->last_head[index] - slice->first_head[index] : 0;
    if (h->count == 0)
        return;
    const cpu_head head = cpu_head_of(operand, size, r->batch, r->index, slice->first_head[index]);
    r->rotate[index] = NULL;
    r->stage[index] = h->stream = h->into_l2 = 0;
    h->before = h->after = h->in_ahead = h->out_ahead = 0;
    h->part = 0;
    h->problem = p;
    h->in = head.in + offset;
    h->out = head.out + offset;
    h->in_stride = operand->in_stride[2] * size;
    h->out_stride = operand->out_stride[2] * size;
    h->in_step = operand->in_stride[1] * size;
    h->out_step = operand->out_stride[1] * size;
    h->by_head = h->in_stride > h->in_step;
    h->split_loads = slice->split_loads && h->count > 1; /* one head a token lost by it */
    if (operand->in != operand->out) {
        h->before = offset;
        h->after = (int64_t)p->head_dim[index] * size - offset - window;
    }
    if (operand->in_stride[3] != 1 || operand->out_stride[3] != 1 || !cpu_rows_fit(p, 1))
        return;
    if (slice->exceeds)
        set_beyond_cache(r, index, size, h->before + window + h->after);
    else if (!slice->near && !(h->before | h->after))
        set_within_cache(r, h, window);
    r->rotate[index] = cpu_choose_instance(r->kernel, r->in_pairs, h);
}

/* Reads some tokens, up to one that does not rotate; returns how many do. */
static int read_tokens(run *r, int most) {
    for (int i = 0; i < most; i++) {
        if (r->consecutive) {
            r->token[i].set = 0;
            r->token[i].at[0] = rope_sum(r->index + i * r->token_stride, r->call->position.offset);
            continue;
        }
        rope_token_read(r->problem, r->call, r->batch, r->index + i * r->token_stride,
                        &r->token[i]);
        if (r->token[i].status != ROPE_TOKEN_ROTATES)
            return i;
    }
    return most;
}

static void fill_rows(run *r, int index, int tokens) {
    const rope_problem *p = r->problem;
    const cpu_pairs all = {0, p->pairs};
    for (int i = 0; i < tokens; i++)
        r->row[i] = cpu_row_at(p, r->buffer.lists, i);
    if (p->angle_mode != ROPE_ANGLE_TABLE) {
        r->kernel->rows->compute(p, r->token, tokens, index, all, r->row);
        return;
    }
    for (int i = 0; i < tokens; i++)
        r->kernel->rows->read(p, r->call, &r->token[i], all, &r->row[i]);
}

/* Around the cache by way of the L1. */
static CPU_NOINLINE void rotate_staged(const run *r, int index, int tokens) {
    char stage[STAGE] __attribute__((aligned(64)));
    const cpu_heads *h = &r->heads[index];
    const int64_t head = h->out_stride, lines = heads_of_lines(head),
                  most = STAGE / head / lines * lines;
    cpu_heads part = *h;
    part.out = stage + h->before;
    part.out_ahead = 0;
    part.by_head = 0;
    for (int i = 0; i < tokens; i++)
        for (int64_t first = 0; first < h->count; first += part.count) {
            char *out = h->out - h->before + i * h->out_step + first * head;
            part.in = h->in + i * h->in_step + first * h->in_stride;
            part.count = h->count - first < most ? h->count - first : most;
            r->rotate[index](&part, 1, &r->row[i], 1);
            r->kernel->rows->stream(out, stage, part.count * head);
        }
}

/* Some pairs of a window to a copy of their own, or from it. */
static void copy_pairs(const rope_problem *p, int pairing, int size, cpu_pairs pairs,
                       const cpu_head *head, int into) {
    const int64_t strides = into ? head->in_stride : head->out_stride;
    const int split = pairing == ROPE_PAIRING_HALF_SPLIT, n = split ? pairs.count : 2 * pairs.count;
    for (int half = 0; half <= split; half++) {
        const int64_t window = (split ? pairs.first + half * p->pairs : 2 * pairs.first) * strides,
                      copy = half * n;
        const cpu_head part = {head->in + (into ? window : copy) * size,
                               head->out + (into ? copy : window) * size, head->in_stride,
                               head->out_stride};
        cpu_copy_elements(size, &part, 0, n);
    }
}

/* By a part of a row, which is filled, in copies of windows. */
static void rotate_copies(const cpu_kernel *kernel, const rope_problem *p, int offset,
                          cpu_pairs pairs, const cpu_cos_sin_row *row,
                          const cpu_long_heads *heads) {
    char copy[2][2 * CPU_PART_PAIRS * sizeof(float)];
    const int size = cpu_dtype_size(p->dtype);
    rope_problem part = *p;
    part.pairs = pairs.count;
    const cpu_heads h = {.problem = &part, .in = copy[0], .out = copy[1], .count = 1};
    const cpu_rotate_heads rotate = cpu_choose_instance(kernel, cpu_rotates_in_pairs(p), &h);
    for (int64_t n = 0; n < heads->count; n++) {
        const cpu_head head = {heads->in + n * heads->in_step, heads->out + n * heads->out_step,
                               heads->in_stride, heads->out_stride},
                       window = cpu_window_of(&head, size, offset),
                       gather = {window.in, copy[0], window.in_stride, 1},
                       scatter = {copy[1], window.out, 1, window.out_stride};
        copy_pairs(p, p->pairing_in, size, pairs, &gather, 1);
        rotate(&h, 1, row, 1);
        copy_pairs(p, p->pairing_out, size, pairs, &scatter, 0);
    }
}

/* The same where they are. */
static void rotate_windows(const cpu_kernel *kernel, const rope_problem *p, int offset,
                           cpu_pairs pairs, const cpu_cos_sin_row *row,
                           const cpu_long_heads *heads) {
    const int size = cpu_dtype_size(p->dtype);
    const cpu_heads h = {
        .problem = p,
        .in = heads->in + (offset + rope_first_of(p->pairing_in, pairs.first)) * (int64_t)size,
        .out = heads->out + (offset + rope_first_of(p->pairing_out, pairs.first)) * (int64_t)size,
        .count = heads->count,
        .in_stride = heads->in_step,
        .out_stride = heads->out_step,
        .part = pairs.count};
    kernel->instances[p->dtype - ROPE_F32]->general(&h, 1, row, 1);
}

CPU_NOINLINE void cpu_rotate_long(const cpu_kernel *kernel, const rope_problem *p,
                                  const rope_call *call, const rope_token *token, int tensor,
                                  const cpu_long_heads *heads) {
    float buffer[4 * CPU_PART_PAIRS] __attribute__((aligned(64)));
    const int size = cpu_dtype_size(p->dtype), offset = p->rotary_offset[tensor],
              last = cpu_moves_last(p, heads->in, heads->out),
              together = heads->in_stride == 1 && heads->out_stride == 1;
    rope_problem part = *p;
    part.pairing_out = last ? p->pairing_in : p->pairing_out;
    for (int first = 0; first < p->pairs; first += CPU_PART_PAIRS) {
        const cpu_pairs pairs = cpu_part_of(p->pairs, first);
        part.pairs = pairs.count;
        const cpu_cos_sin_row row = cpu_row_at(&part, buffer, 0);
        part.pairs = p->pairs;
        if (p->angle_mode == ROPE_ANGLE_TABLE)
            kernel->rows->read(p, call, token, pairs, &row);
        else
            kernel->rows->compute(p, token, 1, tensor, pairs, &row);
        (together ? rotate_windows : rotate_copies)(kernel, &part, offset, pairs, &row, heads);
    }
    for (int64_t n = 0; n < heads->count; n++) {
        const cpu_head head = {heads->in + n * heads->in_step, heads->out + n * heads->out_step,
                               heads->in_stride, heads->out_stride},
                       window = cpu_window_of(&head, size, offset);
        if (last)
            cpu_move_window(p, size, &window);
        cpu_copy_elements(size, &head, 0, offset);
        cpu_copy_elements(size, &head, offset + 2 * p->pairs, heads->head_dim);
    }
}

static void rotate_long(const run *r, int index, int tokens) {
    const rope_problem *p = r->problem;
    const rope_operand *o = &r->call->tensor[index];
    const int size = cpu_dtype_size(p->dtype);
    for (int i = 0; i < tokens; i++) {
        const cpu_head head = cpu_head_of(o, size, r->batch, r->index + i * r->token_stride,
                                          r->slice->first_head[index]);
        const cpu_long_heads heads = {.in = head.in,
                                      .out = head.out,
                                      .in_stride = head.in_stride,
                                      .out_stride = head.out_stride,
                                      .in_step = o->in_stride[2] * size,
                                      .out_step = o->out_stride[2] * size,
                                      .count = r->heads[index].count,
                                      .head_dim = p->head_dim[index]};
        cpu_rotate_long(r->kernel, p, r->call, &r->token[i], index, &heads);
    }
}

static void rotate_tokens(run *r, int tokens) {
    if (r->together) {
        fill_rows(r, 0, tokens);
        r->rotate[0](r->heads, 2, r->row, tokens);
        return;
    }
    for (int index = 0, filled = 0; index < 2; index++) {
        if (r->heads[index].count == 0)
            continue;
        if (!r->rotate[index]) {
            rotate_long(r, index, tokens);
            continue;
        }
        if (!filled || r->problem->xpos_rate)
            fill_rows(r, index, tokens);
        filled = 1;
        if (r->stage[index])
            rotate_staged(r, index, tokens);
        else
            r->rotate[index](&r->heads[index], 1, r->row, tokens);
    }
}

static CPU_NOINLINE void pass_token(const run *r) {
    for (int index = 0; index < 2; index++)
        if (r->call->tensor[index].heads)
            cpu_pass_heads(r->problem, r->call, index, r->batch, r->index, r->slice);
}

static void advance(run *r, int64_t tokens) {
    const int size = cpu_dtype_size(r->problem->dtype);
    for (int index = 0; index < 2; index++) {
        const rope_operand *operand = &r->call->tensor[index];
        cpu_heads *h = &r->heads[index];
        if (h->count == 0)
            continue;
        h->in += tokens * operand->in_stride[1] * size;
        h->out += tokens * operand->out_stride[1] * size;
    }
    r->index += tokens;
}

/* One call for q and k: they share instance and row. */
static int is_together(const run *r) {
    const cpu_heads *q = &r->heads[0], *k = &r->heads[1];
    return q->count && k->count && r->rotate[0] && r->rotate[0] == r->rotate[1] &&
           !(r->stage[0] | r->stage[1] | q->by_head | k->by_head) && !r->problem->xpos_rate &&
           !(q->before | q->after) == !(k->before | k->after) && q->split_loads == k->split_loads;
}

/* The instance for one head a token whose angles nothing but its position changes, or NULL. */
static cpu_rotate_single_head choose_single(const run *r, int index) {
    const rope_problem *p = r->problem;
    const cpu_heads *h = &r->heads[index];
    const int several = r->heads[0].count + r->heads[1].count != 1;
    if (several || !r->rotate[index] || h->before | h->after || !r->in_pairs ||
        p->angle_mode != ROPE_ANGLE_EXACT || p->axes != 1 || p->xpos_rate || cpu_scales_rows(p) ||
        p->pairs % (2 * r->kernel->rows->lanes) != 0)
        return NULL;
    return r->kernel->instances[p->dtype - ROPE_F32]
        ->single[p->pairing_in == ROPE_PAIRING_INTERLEAVED][h->stream];
}

/* Tokens one after the other. */
static void rotate_in_order(run *r, int room) {
    while (r->index < r->last) {
        const int64_t left = r->last - r->index;
        const int tokens = read_tokens(r, left < room ? (int)left : room);
        if (tokens)
            rotate_tokens(r, tokens);
        else
            pass_token(r);
        advance(r, tokens ? tokens : 1);
    }
}

/* One head a token: all that are left at once where positions are consecutive. */
static void rotate_single(run *r, cpu_rotate_single_head single, const cpu_heads *head,
                          int streams) {
    while (r->index < r->last) {
        int64_t left = r->last - r->index, done = 1;
        if (!read_tokens(r, 1))
            pass_token(r);
        else if (r->consecutive && left >= streams)
            single(head, r->token[0].at[0], done = left / streams, streams), done *= streams;
        else
            single(head, r->token[0].at[0], done, 1);
        advance(r, done);
    }
}

/* Every token rotates: none lies outside a sequence or a table. */
static int all_rotate(const run *r) {
    const rope_problem *p = r->problem;
    return !r->call->position.cu_seqlens &&
           (p->angle_mode != ROPE_ANGLE_TABLE ||
            (p->out_of_range != ROPE_OUT_OF_RANGE_IDENTITY && r->call->table_rows > 0));
}

/* Sets what separates the tokens that rotate together. */
static void set_token_stride(run *r, int64_t token_stride) {
    const int size = cpu_dtype_size(r->problem->dtype);
    r->token_stride = token_stride;
    for (int index = 0; index < 2; index++) {
        const rope_operand *operand = &r->call->tensor[index];
        r->heads[index].in_step = token_stride * operand->in_stride[1] * size;
        r->heads[index].out_step = token_stride * operand->out_stride[1] * size;
        r->heads[index].by_head = token_stride > 1 || operand->in_stride[2] > operand->in_stride[1];
    }
    r->together = is_together(r);
}

/* Equal parts of a run, interleaved: memory serves several streams faster than one (Intel). */
static void rotate_streams(run *r) {
    const int64_t token_stride = (r->last - r->index) / TOKENS, end = r->index + token_stride;
    set_token_stride(r, token_stride);
    while (r->index < end) {
        read_tokens(r, TOKENS);
        rotate_tokens(r, TOKENS);
        advance(r, 1);
    }
    advance(r, (TOKENS - 1) * token_stride);
    set_token_stride(r, 1);
}

static void rotate_run(run *r) {
    r->token_stride = 1;
    begin_tensor(r, 0);
    begin_tensor(r, 1);
    r->together = is_together(r);
    const int one = r->heads[0].count == 0, fits = cpu_rows_fit(r->problem, TOKENS),
              streams = r->slice->exceeds && fits ? r->slice->policy->streams : 1;
    const int by_head =
        (r->heads[0].count && r->heads[0].by_head) || (r->heads[1].count && r->heads[1].by_head);
    const cpu_rotate_single_head single = choose_single(r, one);
    if (single && r->consecutive) {
        rotate_single(r, single, &r->heads[one], streams);
        return;
    }
    if (streams > 1 && all_rotate(r))
        rotate_streams(r);
    if (single)
        rotate_single(r, single, &r->heads[one], 1);
    else
        rotate_in_order(r, by_head && fits ? TOKENS : 1);
}

/* Smaller calls are taken to find their memory in the cache. */
enum { NEAR_BYTES = 256 * 1024 };

static int64_t elements_of(const rope_problem *problem, const rope_call *call, int tensor) {
    const rope_operand *operand = &call->tensor[tensor];
    int in_place = operand->in == operand->out;
    int64_t row = in_place ? 2 * (int64_t)problem->pairs : problem->head_dim[tensor];
    return call->batch * call->tokens * operand->heads * row;
}

static int64_t bytes_of(const rope_problem *problem, const rope_call *call) {
    int64_t size = problem->dtype == ROPE_F64 ? 8 : problem->dtype == ROPE_F32 ? 4 : 2;
    return 2 * size * (elements_of(problem, call, 0) + elements_of(problem, call, 1));
}

/* Contiguous tokens a thread; heads where there are fewer tokens than threads. Written where it is
 * read: a copy of what was just written waits for the stores. */
static void fill_slice(const rope_call *call, int64_t bytes, int index, int parts,
                       cpu_slice *slice) {
    int64_t tokens = call->batch * call->tokens;
    int by_heads = tokens < parts;
    const cpu_prefetch_policy *policy = cpu_prefetch_policy_chosen();
    slice->first_token = by_heads ? 0 : cpu_part(tokens, index, parts);
    slice->last_token = by_heads ? tokens : cpu_part(tokens, index + 1, parts);
    slice->policy = policy;
    slice->exceeds = bytes > policy->cache_bytes;
    slice->near = bytes < NEAR_BYTES;
    slice->split_loads =
        policy->split_loads && (bytes >= policy->split_loads * parts || slice->exceeds);
    for (int t = 0; t < 2; t++) {
        int64_t heads = call->tensor[t].heads;
        slice->first_head[t] = by_heads ? cpu_part(heads, index, parts) : 0;
        slice->last_head[t] = by_heads ? cpu_part(heads, index + 1, parts) : heads;
    }
}

/* A thread's part of a call. */
static void rotate_slice(const cpu_kernel *kernel, const rope_problem *p, const rope_call *call,
                         int64_t bytes, int index, int parts) {
    cpu_slice slice;
    run r;
    fill_slice(call, bytes, index, parts, &slice);
    if (p->dtype == ROPE_F64 || kernel->slice) {
        (p->dtype == ROPE_F64 ? kernel->slice_f64 : kernel->slice)(p, call, &slice);
        return;
    }
    int64_t left = slice.last_token - slice.first_token;
    r.kernel = kernel;
    r.problem = p;
    r.call = call;
    r.slice = &slice;
    r.batch = 0;
    r.index = slice.first_token;
    r.consecutive = is_consecutive(p, call);
    r.in_pairs = cpu_rotates_in_pairs(p);
    if (r.index >= call->tokens) {
        r.batch = r.index / call->tokens;
        r.index %= call->tokens;
    }
    for (; left > 0; r.batch++, r.index = 0) {
        r.last = call->tokens - r.index < left ? call->tokens : r.index + left;
        left -= r.last - r.index;
        rotate_run(&r);
    }
#if defined(__SSE2__)
    if (slice.exceeds)
        __builtin_ia32_sfence();
#endif
}

void cpu_rotate_on_this_thread(const cpu_kernel *kernel, const rope_problem *p,
                               const rope_call *call) {
    rotate_slice(kernel, p, call, bytes_of(p, call), 0, 1);
}

rope_status cpu_rotate_call(const void *canonical, const void *kernel, const void *given,
                            void *workspace, void *stream) {
    (void)workspace, (void)stream;
    const rope_problem *problem = canonical;
    const rope_call *call = given;
    rope_status status = cpu_check_positions(problem, call);
    if (status != ROPE_OK)
        return status;
    int64_t bytes = bytes_of(problem, call);
    int parts = cpu_threads_for(bytes);
    if (parts == 1) {
        rotate_slice(kernel, problem, call, bytes, 0, 1);
        return ROPE_OK;
    }
#if defined(_OPENMP)
#pragma omp parallel num_threads(parts)
    rotate_slice(kernel, problem, call, bytes, omp_get_thread_num(), omp_get_num_threads());
#endif
    return ROPE_OK;
}
