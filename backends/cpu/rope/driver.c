/*
 * Goes through a slice of a call: reads tokens, fills their cos/sin rows, and hands their heads to
 * the instance that fits. Compiled once; vectors are in the instances alone.
 */
#include "backends/cpu/rope/head.h"

enum { TOKENS = 4 };                /* most whose rows are filled before their heads rotate */
enum { STAGE = 16384, HEADS = 16 }; /* bytes of staged heads, and how many of them at least */

/* q or k at the token that is next. */
typedef struct tensor {
    cpu_heads heads;
    cpu_rotate_heads rotate; /* NULL: elements lie apart */
    int stage;               /* heads go around the cache by way of the L1 */
} tensor;

/* Where the driver stands in the tokens of one batch row. */
typedef struct run {
    const cpu_kernel *kernel;
    const rope_problem *problem;
    const rope_call *call;
    const cpu_slice *slice;
    int64_t batch, index, last;
    int consecutive; /* positions are the offset plus the index, and nothing else differs */
    tensor tensor[2];
    rope_token token[TOKENS];
    cpu_cos_sin_row row[TOKENS];
    cpu_row_buffer buffer;
} run;

static int is_consecutive(const rope_problem *p, const rope_call *call) {
    const rope_position_map *map = &call->position;
    return !map->ids && !map->cu_seqlens && !map->offsets && map->shard == ROPE_SHARD_NONE &&
           p->axes == 1 && p->frequency_sets == 1 && p->angle_mode != ROPE_ANGLE_TABLE;
}

/* One cos and sin rotate each pair where it is. */
static int is_plain(const rope_problem *p) {
    return p->pairing_in == p->pairing_out && p->arithmetic != ROPE_ARITHMETIC_MODEL_DTYPE &&
           !(p->angle_mode == ROPE_ANGLE_TABLE && p->table_width == ROPE_TABLE_FULL);
}

/* Streaming stores need aligned vectors. Three roundings for each result of 16 bits take as long as
 * they save. */
static int can_stream(const rope_problem *p, const cpu_heads *h, int size, int lanes) {
    const uintptr_t lines = (uintptr_t)h->out | (uintptr_t)h->out_stride | (uintptr_t)h->out_step |
                            (uintptr_t)(h->before | h->after) | (uintptr_t)(p->pairs * size);
    return lines % (4 * (uintptr_t)lanes) == 0 && h->in != h->out;
}

/* A token's heads lie side by side from line to line, and sixteen of them are whole lines. Less
 * than 1 KiB would be read back while it is written. */
static int can_stage(const cpu_heads *h, int64_t head) {
    const int64_t token = h->count * head;
    const uintptr_t lines = (uintptr_t)(h->out - h->before) | (uintptr_t)h->out_step |
                            (uintptr_t)token | (uintptr_t)(HEADS * head);
    return lines % 64 == 0 && h->out_stride == head && h->in != h->out &&
           h->in_stride <= h->in_step && token >= 1024 && head <= STAGE / HEADS;
}

/* From a head to that which is prefetched: `bytes` ahead in whole heads, within a token where it
 * has as many, or to another token. */
static int64_t ahead_of(int64_t bytes, int64_t head, int64_t heads, int64_t stride, int64_t step) {
    const int64_t count = bytes > head ? bytes / head : 1;
    if (stride > step) /* one head of some tokens is followed by the same head of the next ones */
        return (int64_t)((uint64_t)step * TOKENS);
    return heads > count ? stride * count : (int64_t)((uint64_t)step * (uint64_t)(count / heads));
}

/* Windows of 32 and 64 pairs that the cache holds lose by it, as do parts of heads. */
static void set_prefetch(const cpu_slice *slice, int size, int64_t head, cpu_heads *h) {
    const int pairs = h->problem->pairs, within = pairs != 32 && pairs != 64 && !slice->near &&
                                                  head == 2 * (int64_t)pairs * size;
    const int64_t bytes = slice->exceeds ? slice->policy->ahead[size == 4]
                          : within       ? slice->policy->within
                                         : 0;
    if (!bytes)
        return;
    h->in_ahead = ahead_of(bytes, head, h->count, h->in_stride, h->in_step);
    h->out_ahead = ahead_of(bytes, head, h->count, h->out_stride, h->out_step);
}

static cpu_rotate_heads choose(const cpu_rope_instances *instances, const rope_problem *p,
                               int stream) {
    const int size = p->pairs == 64 ? CPU_PAIRS_64 : p->pairs == 32 ? CPU_PAIRS_32 : CPU_PAIRS_ANY;
    if (!is_plain(p))
        return instances->general;
    return instances->rotate[p->pairing_in == ROPE_PAIRING_INTERLEAVED][size][stream];
}

/* A tensor at the first token of a run. */
static void begin_tensor(const run *r, int index, tensor *t) {
    const rope_problem *p = r->problem;
    const rope_operand *operand = &r->call->tensor[index];
    const cpu_slice *slice = r->slice;
    const int size = cpu_dtype_size(p->dtype), offset = p->rotary_offset[index] * size;
    cpu_heads *h = &t->heads;
    h->count = 0;
    t->rotate = NULL;
    t->stage = h->stream = 0;
    h->before = h->after = h->in_ahead = h->out_ahead = 0;
    if (operand->heads == 0 || slice->first_head[index] >= slice->last_head[index])
        return;
    const cpu_head head = cpu_head_of(operand, size, r->batch, r->index, slice->first_head[index]);
    h->problem = p;
    h->in = head.in + offset;
    h->out = head.out + offset;
    h->count = slice->last_head[index] - slice->first_head[index];
    h->in_stride = operand->in_stride[2] * size;
    h->out_stride = operand->out_stride[2] * size;
    h->in_step = operand->in_stride[1] * size;
    h->out_step = operand->out_stride[1] * size;
    h->by_head = h->in_stride > h->in_step;
    h->split_loads = slice->split_loads && h->count > 1; /* one head a token lost by it */
    if (operand->in != operand->out) {
        h->before = offset;
        h->after = (int64_t)p->head_dim[index] * size - offset - 2 * (int64_t)p->pairs * size;
    }
    if (operand->in_stride[3] != 1 || operand->out_stride[3] != 1)
        return;
    const int64_t bytes = h->before + 2 * (int64_t)p->pairs * size + h->after;
    const int lanes = r->kernel->rows->lanes;
    const int around =
        slice->exceeds && (size == 4 || p->arithmetic != ROPE_ARITHMETIC_MODEL_DTYPE);
    h->stream = around && can_stream(p, h, size, lanes);
    t->stage =
        around && lanes > 4 && !h->stream && can_stage(h, (int64_t)p->head_dim[index] * size);
    set_prefetch(slice, size, bytes, h);
    t->rotate = choose(r->kernel->instances[p->dtype - ROPE_F32], p, h->stream);
}

/* Reads some tokens, up to one that does not rotate; returns how many do. */
static int read_tokens(run *r, int most) {
    for (int i = 0; i < most; i++) {
        if (r->consecutive) {
            r->token[i].set = 0;
            r->token[i].at[0] = rope_sum(r->index + i, r->call->position.offset);
            continue;
        }
        rope_token_read(r->problem, r->call, r->batch, r->index + i, &r->token[i]);
        if (r->token[i].fate != ROPE_TOKEN_ROTATES)
            return i;
    }
    return most;
}

static void fill_rows(run *r, int index, int tokens) {
    const rope_problem *p = r->problem;
    for (int i = 0; i < tokens; i++)
        r->row[i] = cpu_row_at(p, &r->buffer, i);
    if (p->angle_mode != ROPE_ANGLE_TABLE) {
        r->kernel->rows->compute(p, r->token, tokens, index, r->row);
        return;
    }
    for (int i = 0; i < tokens; i++)
        r->kernel->rows->read(p, r->call, &r->token[i], &r->row[i]);
}

static void rotate_tensor(const run *r, const tensor *t, const cpu_cos_sin_row *rows, int tokens) {
    const rope_problem *p = r->problem;
    t->rotate(&t->heads, rows, tokens);
    if (t->heads.before | t->heads.after)
        r->kernel->rows->pass_through(&t->heads, 2 * (int64_t)p->pairs * cpu_dtype_size(p->dtype),
                                      tokens);
}

/* Around the cache by way of the L1. */
static CPU_NOINLINE void rotate_staged(const run *r, const tensor *t, int tokens) {
    char stage[STAGE] __attribute__((aligned(64)));
    const cpu_heads *h = &t->heads;
    const int64_t head = h->out_stride, most = STAGE / head / HEADS * HEADS;
    tensor part = *t;
    part.heads.out = stage + h->before;
    part.heads.out_ahead = 0;
    part.heads.by_head = 0;
    for (int i = 0; i < tokens; i++)
        for (int64_t first = 0; first < h->count; first += part.heads.count) {
            char *out = h->out - h->before + i * h->out_step + first * head;
            part.heads.in = h->in + i * h->in_step + first * h->in_stride;
            part.heads.count = h->count - first < most ? h->count - first : most;
            rotate_tensor(r, &part, &r->row[i], 1);
            r->kernel->rows->stream(out, stage, part.heads.count * head);
        }
}

/* A head whose elements lie apart is rotated in a copy. */
static CPU_NOINLINE void rotate_strided(const run *r, int index, const tensor *t, int tokens) {
    const rope_problem *p = r->problem;
    const int size = cpu_dtype_size(p->dtype), elements = 2 * p->pairs;
    const rope_operand *operand = &r->call->tensor[index];
    char window[2 * CPU_MAX_PAIRS * sizeof(float)];
    const cpu_heads copy = {.problem = p, .in = window, .out = window, .count = 1};
    const cpu_rotate_heads rotate = choose(r->kernel->instances[p->dtype - ROPE_F32], p, 0);
    for (int i = 0; i < tokens; i++)
        for (int64_t h = r->slice->first_head[index]; h < r->slice->last_head[index]; h++) {
            const cpu_head head = cpu_head_of(operand, size, r->batch, r->index + i, h);
            const cpu_head from = cpu_window_of(&head, size, p->rotary_offset[index]);
            const cpu_head gather = {from.in, window, from.in_stride, 1},
                           scatter = {window, from.out, 1, from.out_stride};
            cpu_copy_elements(size, &head, 0, p->rotary_offset[index]);
            cpu_copy_elements(size, &gather, 0, elements);
            rotate(&copy, &r->row[i], 1);
            cpu_copy_elements(size, &scatter, 0, elements);
            cpu_copy_elements(size, &head, p->rotary_offset[index] + elements, p->head_dim[index]);
        }
    (void)t;
}

static void rotate_tokens(run *r, int tokens) {
    int filled = 0;
    for (int index = 0; index < 2; index++) {
        const tensor *t = &r->tensor[index];
        if (t->heads.count == 0)
            continue;
        if (!filled || r->problem->xpos_rate)
            fill_rows(r, index, tokens);
        filled = 1;
        if (!t->rotate)
            rotate_strided(r, index, t, tokens);
        else if (t->stage)
            rotate_staged(r, t, tokens);
        else
            rotate_tensor(r, t, r->row, tokens);
    }
}

static CPU_NOINLINE void pass_token(const run *r) {
    for (int index = 0; index < 2; index++)
        if (r->call->tensor[index].heads)
            cpu_pass_heads(r->problem, r->call, index, r->batch, r->index, r->slice);
}

static void advance(run *r, int64_t tokens) {
    for (int index = 0; index < 2; index++) {
        cpu_heads *h = &r->tensor[index].heads;
        if (h->count == 0)
            continue;
        h->in += tokens * h->in_step;
        h->out += tokens * h->out_step;
    }
    r->index += tokens;
}

/* The instance for one head a token whose angles nothing but its position changes, or NULL. */
static cpu_rotate_single_head choose_single(const run *r, const tensor *t) {
    const rope_problem *p = r->problem;
    const int several = r->tensor[0].heads.count + r->tensor[1].heads.count != 1;
    if (several || !t->rotate || t->heads.before | t->heads.after || !is_plain(p) ||
        p->angle_mode != ROPE_ANGLE_EXACT || p->axes != 1 || p->xpos_rate || cpu_scales_rows(p) ||
        p->pairs % (2 * r->kernel->rows->lanes) != 0)
        return NULL;
    return r->kernel->instances[p->dtype - ROPE_F32]
        ->single[p->pairing_in == ROPE_PAIRING_INTERLEAVED][t->heads.stream];
}

static void rotate_run(run *r) {
    begin_tensor(r, 0, &r->tensor[0]);
    begin_tensor(r, 1, &r->tensor[1]);
    const tensor *one = &r->tensor[r->tensor[0].heads.count == 0];
    const cpu_rotate_single_head single = choose_single(r, one);
    const int room = single || r->problem->pairs > CPU_MAX_PAIRS / TOKENS ? 1 : TOKENS;
    while (r->index < r->last) {
        const int64_t left = r->last - r->index;
        const int tokens = read_tokens(r, left < room ? (int)left : room);
        int64_t done = tokens ? tokens : 1;
        if (tokens && single)
            single(&one->heads, r->token[0].at[0], done = r->consecutive ? left : 1);
        else if (tokens)
            rotate_tokens(r, tokens);
        else
            pass_token(r);
        advance(r, done);
    }
}

void cpu_rope_drive(const cpu_kernel *kernel, const rope_problem *p, const rope_call *call,
                    const cpu_slice *slice) {
    run r;
    int64_t left = slice->last_token - slice->first_token;
    r.kernel = kernel;
    r.problem = p;
    r.call = call;
    r.slice = slice;
    r.batch = 0;
    r.index = slice->first_token;
    r.consecutive = is_consecutive(p, call);
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
    if (slice->exceeds)
        __builtin_ia32_sfence();
#endif
}
