/* The kernel of a vector ISA: what its lanes cannot do goes the way of generic.h. */
#ifndef ROPEKIT_CPU_KERNEL_LANES_H
#define ROPEKIT_CPU_KERNEL_LANES_H

#include "backends/cpu/generic_f64.h"
#include "backends/cpu/lone_lanes.h"
#include "backends/cpu/plain_lanes.h"
#include "backends/cpu/table_lanes.h"
#include "backends/cpu/walk_lanes.h"

/* One tensor of a slice, at the token that is next. */
typedef struct lanes_tensor {
    lanes_heads heads;
    int64_t in_step, out_step; /* bytes from token to token */
    int vectors;               /* elements lie side by side */
    int stream;                /* vectors are stored around the cache */
    int stage;                 /* heads go around it by way of the L1 */
} lanes_tensor;

/* Where a kernel stands in a run of tokens of one batch row. */
typedef struct lanes_run {
    int64_t batch, index, last;
    int64_t spread; /* from a token to the next of those that rotate together */
    int counts;     /* positions are the offset plus the index, and nothing else differs */
    lanes_tensor tensor[2];
    rope_token token[LANES_TOKENS];
    cpu_row row[LANES_TOKENS];
    cpu_row_buffer buffer;
} lanes_run;

CPU_INLINE void lanes_dispatch_pairing(lanes_kind kind, const rope_problem *p,
                                       const lanes_heads *heads, const cpu_row *rows, int tokens) {
    const int blocks = !kind.model && lanes_serves_blocks(p);
    lanes_kind half = kind, inter = kind;
    half.in_pairing = inter.out_pairing = ROPE_PAIRING_HALF_SPLIT;
    inter.in_pairing = half.out_pairing = ROPE_PAIRING_INTERLEAVED;
    if (p->pairing_in != p->pairing_out) {
        if (p->pairing_in == ROPE_PAIRING_INTERLEAVED)
            lanes_rotate_any(inter, heads, rows, tokens);
        else
            lanes_rotate_any(half, heads, rows, tokens);
        return;
    }
    half.out_pairing = half.in_pairing;
    inter.out_pairing = inter.in_pairing;
    if (p->pairing_in == ROPE_PAIRING_INTERLEAVED && blocks)
        lanes_rotate_blocks(inter, heads, rows, tokens);
    else if (p->pairing_in == ROPE_PAIRING_INTERLEAVED)
        lanes_rotate_any(inter, heads, rows, tokens);
    else if (blocks)
        lanes_rotate_blocks(half, heads, rows, tokens);
    else
        lanes_rotate_any(half, heads, rows, tokens);
}

CPU_INLINE void lanes_dispatch(int dtype, const rope_problem *p, const lanes_tensor *tensor,
                               const cpu_row *rows, int tokens) {
    lanes_kind kind = {.dtype = dtype, .fetch = 1},
               stream = {.dtype = dtype, .stream = 1, .fetch = 1},
               model = {.dtype = dtype, .model = 1, .fetch = 1};
    if (p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE)
        lanes_dispatch_pairing(model, p, &tensor->heads, rows, tokens);
    else if (tensor->stream)
        lanes_dispatch_pairing(stream, p, &tensor->heads, rows, tokens);
    else
        lanes_dispatch_pairing(kind, p, &tensor->heads, rows, tokens);
}

static CPU_APART void lanes_f32_heads(const rope_problem *p, const lanes_tensor *tensor,
                                      const cpu_row *rows, int tokens) {
    lanes_dispatch(ROPE_F32, p, tensor, rows, tokens);
}

static CPU_APART void lanes_f16_heads(const rope_problem *p, const lanes_tensor *tensor,
                                      const cpu_row *rows, int tokens) {
    lanes_dispatch(ROPE_F16, p, tensor, rows, tokens);
}

static CPU_APART void lanes_bf16_heads(const rope_problem *p, const lanes_tensor *tensor,
                                       const cpu_row *rows, int tokens) {
    lanes_dispatch(ROPE_BF16, p, tensor, rows, tokens);
}

CPU_INLINE void lanes_rotate_heads(int dtype, const rope_problem *p, const lanes_tensor *tensor,
                                   const cpu_row *rows, int tokens) {
    if (dtype == ROPE_F32)
        lanes_f32_heads(p, tensor, rows, tokens);
    else if (dtype == ROPE_BF16)
        lanes_bf16_heads(p, tensor, rows, tokens);
    else
        lanes_f16_heads(p, tensor, rows, tokens);
}

/* Streaming stores need aligned vectors, and lines that are written whole. */
CPU_INLINE int lanes_can_stream(const rope_problem *p, const lanes_tensor *tensor, int size) {
    const lanes_heads *heads = &tensor->heads;
    uintptr_t lines =
        (uintptr_t)heads->out | (uintptr_t)heads->out_stride | (uintptr_t)tensor->out_step;
    return lines % (4 * LANES) == 0 && p->pairs * size % lanes_store_bytes(p, size) == 0 &&
           heads->in != heads->out;
}

enum { LANES_STAGE = 16384 }; /* bytes of heads that wait in the L1, sixteen of them at least */

/* A token's heads lie side by side from line to line, and sixteen of them are whole lines. Less
 * than 1 KiB would be read back while it is written. */
CPU_INLINE int lanes_can_stage(const lanes_tensor *tensor, int64_t head) {
    const lanes_heads *heads = &tensor->heads;
    const int64_t token = heads->count * head;
    uintptr_t lines = (uintptr_t)(heads->out - heads->before) | (uintptr_t)tensor->out_step |
                      (uintptr_t)token | (uintptr_t)(16 * head);
    return LANES > 4 && lines % 64 == 0 && heads->out_stride == head && heads->in != heads->out &&
           heads->in_stride <= tensor->in_step && token >= 1024 && head <= LANES_STAGE / 16;
}

/* A tensor at the first token of a run. */
CPU_INLINE lanes_tensor lanes_tensor_of(int dtype, const rope_problem *p, const rope_call *call,
                                        int tensor, int64_t batch, int64_t index,
                                        const cpu_slice *slice) {
    const rope_operand *operand = &call->tensor[tensor];
    const int64_t size = cpu_dtype_size(dtype), offset = p->rotary_offset[tensor] * size;
    cpu_head head = cpu_head_of(operand, (int)size, batch, index, slice->first_head[tensor]);
    int copies = operand->in != operand->out;
    lanes_tensor t = {
        .heads = {.in = head.in + offset,
                  .out = head.out + offset,
                  .count = slice->last_head[tensor] - slice->first_head[tensor],
                  .in_stride = operand->in_stride[2] * size,
                  .out_stride = operand->out_stride[2] * size,
                  .before = copies ? offset : 0,
                  .after = copies ? (p->head_dim[tensor] - 2 * p->pairs) * size - offset : 0,
                  .pairs = p->pairs},
        .in_step = operand->in_stride[1] * size,
        .out_step = operand->out_stride[1] * size,
        .vectors = operand->in_stride[3] == 1 && operand->out_stride[3] == 1,
    };
    const lanes_heads *h = &t.heads;
    int64_t windows = lanes_windows_ahead(p, slice, (int)size, 0);
    t.stream = slice->exceeds && lanes_can_stream(p, &t, (int)size);
    t.stage = slice->exceeds && !t.stream && lanes_can_stage(&t, p->head_dim[tensor] * size);
    t.heads.in_ahead = lanes_ahead(slice, windows, h->count, h->in_stride, t.in_step);
    windows = lanes_windows_ahead(p, slice, (int)size, 1);
    t.heads.out_ahead = lanes_ahead(slice, windows, h->count, h->out_stride, t.out_step);
    windows = lanes_windows_far(p, slice, h->count, (int)size);
    t.heads.in_far = lanes_ahead(slice, windows, h->count, h->in_stride, t.in_step);
    t.heads.touch = lanes_touches(slice, h->count);
    return t;
}

static int lanes_counts(const rope_problem *p, const rope_call *call) {
    const rope_position_map *map = &call->position;
    return !map->ids && !map->cu_seqlens && !map->offsets && map->shard == ROPE_SHARD_NONE &&
           p->axes == 1 && p->frequency_sets == 1 && p->angle_mode != ROPE_ANGLE_TABLE;
}

/* Reads some tokens, up to one that does not rotate; returns how many do. */
static CPU_APART int lanes_read_tokens(const rope_problem *p, const rope_call *call, lanes_run *run,
                                       int most) {
    for (int i = 0; i < most; i++) {
        rope_token_read(p, call, run->batch, run->index + i * run->spread, &run->token[i]);
        if (run->token[i].fate != ROPE_TOKEN_ROTATES)
            return i;
    }
    return most;
}

CPU_INLINE int lanes_next_tokens(const rope_problem *p, const rope_call *call, lanes_run *run,
                                 int most) {
    if (!run->counts)
        return lanes_read_tokens(p, call, run, most);
    for (int i = 0; i < most; i++) {
        int64_t index = run->index + i * run->spread;
        run->token[i].set = 0;
        run->token[i].at[0] = rope_sum(index, call->position.offset);
    }
    return most;
}

static void lanes_fill_rows(const rope_problem *p, const rope_call *call, int tensor,
                            lanes_run *run, int tokens) {
    for (int i = 0; i < tokens; i++)
        run->row[i] = cpu_row_at(p, &run->buffer, i);
    if (p->angle_mode != ROPE_ANGLE_TABLE) {
        lanes_compute_rows(p, run->token, tokens, tensor, run->row);
        return;
    }
    int vectors = lanes_reads(p, call);
    for (int i = 0; i < tokens; i++) {
        if (vectors) {
            lanes_table_row(p, call, &run->token[i], &run->row[i]);
            continue;
        }
        cpu_fill_row(p, call, &run->token[i], tensor, &run->row[i]);
        lanes_quiet_row(p, &run->row[i]);
    }
}

/* The heads of some tokens around the cache by way of the L1. */
static CPU_APART void lanes_rotate_staged(int dtype, const rope_problem *p,
                                          const lanes_tensor *tensor, const cpu_row *rows,
                                          int tokens) {
    char stage[LANES_STAGE] __attribute__((aligned(64)));
    const lanes_heads *heads = &tensor->heads;
    const int64_t head = heads->out_stride, most = LANES_STAGE / head / 16 * 16;
    lanes_tensor part = *tensor;
    part.heads.out = stage + heads->before;
    part.heads.out_ahead = 0;
    part.heads.by_head = 0;
    for (int t = 0; t < tokens; t++)
        for (int64_t h = 0; h < heads->count; h += part.heads.count) {
            char *out = heads->out - heads->before + t * heads->out_step + h * head;
            part.heads.in = heads->in + t * heads->in_step + h * heads->in_stride;
            part.heads.count = heads->count - h < most ? heads->count - h : most;
            lanes_rotate_heads(dtype, p, &part, &rows[t], 1);
            for (int64_t at = 0; at < part.heads.count * head; at += 4 * LANES)
                lanes_stream_f(out + at, lanes_load_f(stage + at));
        }
}

CPU_INLINE void lanes_rotate_tokens(int dtype, const rope_problem *p, const rope_call *call,
                                    const cpu_slice *slice, lanes_run *run, int tokens) {
    int filled = 0;
    for (int t = 0; t < 2; t++) {
        const lanes_tensor *tensor = &run->tensor[t];
        if (call->tensor[t].heads == 0)
            continue;
        if (!filled || p->xpos_rate)
            lanes_fill_rows(p, call, t, run, tokens);
        filled = 1;
        if (LANES > 4 && tensor->stage && tensor->vectors)
            lanes_rotate_staged(dtype, p, tensor, run->row, tokens);
        else if (tensor->vectors)
            lanes_rotate_heads(dtype, p, tensor, run->row, tokens);
        for (int i = 0; i < tokens && !tensor->vectors; i++)
            cpu_rotate_heads(p, call, t, run->batch, run->index + i * run->spread, slice,
                             &run->row[i]);
    }
}

static CPU_APART void lanes_pass_token(const rope_problem *p, const rope_call *call,
                                       const cpu_slice *slice, const lanes_run *run) {
    for (int t = 0; t < 2; t++)
        if (call->tensor[t].heads)
            cpu_pass_heads(p, call, t, run->batch, run->index, slice);
}

/* To the token `tokens` after the next. */
CPU_INLINE void lanes_advance(lanes_run *run, int64_t tokens) {
    for (int t = 0; t < 2; t++) {
        if (!run->tensor[t].heads.in) /* absent */
            continue;
        run->tensor[t].heads.in += tokens * run->tensor[t].in_step;
        run->tensor[t].heads.out += tokens * run->tensor[t].out_step;
    }
    run->index += tokens;
}

/* Tokens one after the other. */
CPU_INLINE void lanes_rotate_in_order(int dtype, const rope_problem *p, const rope_call *call,
                                      const cpu_slice *slice, lanes_run *run, int room) {
    while (run->index < run->last) {
        int64_t left = run->last - run->index;
        int tokens = lanes_next_tokens(p, call, run, left < room ? (int)left : room);
        if (tokens)
            lanes_rotate_tokens(dtype, p, call, slice, run, tokens);
        else
            lanes_pass_token(p, call, slice, run);
        lanes_advance(run, tokens ? tokens : 1);
    }
}

/* One head a token whose angles nothing but its position changes. */
CPU_INLINE int lanes_is_lone(const rope_problem *p, const lanes_run *run) {
    const lanes_tensor *q = &run->tensor[0], *k = &run->tensor[1];
    const lanes_tensor *tensor = q->heads.count ? q : k;
    return q->heads.count + k->heads.count == 1 && tensor->vectors &&
           !(tensor->heads.before | tensor->heads.after) && lanes_serves_lone(p);
}

/* Tokens of one head each: all of a run at once where their positions count. */
CPU_INLINE void lanes_rotate_alone(int dtype, const rope_problem *p, const rope_call *call,
                                   const cpu_slice *slice, lanes_run *run, int parts) {
    const lanes_tensor *tensor = &run->tensor[run->tensor[0].heads.count == 0];
    while (run->index < run->last) {
        int64_t left = run->last - run->index, whole = left - left % parts;
        lanes_count tokens = {.count = 1, .parts = 1};
        if (run->counts && whole)
            tokens = (lanes_count){.count = whole, .parts = parts};
        else if (run->counts)
            tokens.count = left;
        if (lanes_next_tokens(p, call, run, 1)) {
            tokens.position = run->token[0].at[0];
            lanes_rotate_lone(dtype, p, &tensor->heads, tensor->stream, &tokens);
        } else {
            lanes_pass_token(p, call, slice, run);
        }
        lanes_advance(run, tokens.count);
    }
}

/* Every token rotates: none lies outside a sequence or a table. */
CPU_INLINE int lanes_all_rotate(const rope_problem *p, const rope_call *call) {
    return !call->position.cu_seqlens &&
           (p->angle_mode != ROPE_ANGLE_TABLE ||
            (p->out_of_range != ROPE_OUT_OF_RANGE_IDENTITY && call->table_rows > 0));
}

/* Sets what separates the tokens that rotate together. */
CPU_INLINE void lanes_spread(lanes_run *run, int64_t spread) {
    run->spread = spread;
    for (int t = 0; t < 2; t++) {
        lanes_tensor *tensor = &run->tensor[t];
        tensor->heads.in_step = spread * tensor->in_step;
        tensor->heads.out_step = spread * tensor->out_step;
        tensor->heads.by_head = spread > 1 || tensor->heads.in_stride > tensor->in_step;
    }
}

/* LANES_TOKENS equal parts of a run side by side: memory serves several streams faster than one. */
CPU_INLINE void lanes_rotate_apart(int dtype, const rope_problem *p, const rope_call *call,
                                   const cpu_slice *slice, lanes_run *run) {
    const int64_t spread = (run->last - run->index) / LANES_TOKENS, end = run->index + spread;
    lanes_spread(run, spread);
    while (run->index < end) {
        int tokens = lanes_next_tokens(p, call, run, LANES_TOKENS);
        lanes_rotate_tokens(dtype, p, call, slice, run, tokens);
        lanes_advance(run, 1);
    }
    lanes_advance(run, (LANES_TOKENS - 1) * spread);
}

CPU_INLINE void lanes_rotate_run(int dtype, const rope_problem *p, const rope_call *call,
                                 const cpu_slice *slice, lanes_run *run) {
    const int room = p->pairs > CPU_MAX_PAIRS / LANES_TOKENS ? 1 : LANES_TOKENS;
    run->counts = lanes_counts(p, call);
    for (int t = 0; t < 2; t++)
        if (call->tensor[t].heads)
            run->tensor[t] = lanes_tensor_of(dtype, p, call, t, run->batch, run->index, slice);
        else
            run->tensor[t] = (lanes_tensor){.in_step = 0};
    const int lone = lanes_is_lone(p, run);
    const int apart =
        slice->exceeds && slice->walk->apart && room == LANES_TOKENS && lanes_all_rotate(p, call);
    if (apart && !(lone && run->counts))
        lanes_rotate_apart(dtype, p, call, slice, run);
    lanes_spread(run, 1);
    if (lone)
        lanes_rotate_alone(dtype, p, call, slice, run, apart ? LANES_TOKENS : 1);
    else
        lanes_rotate_in_order(dtype, p, call, slice, run, room);
}

CPU_INLINE void lanes_rotate_runs(int dtype, const rope_problem *p, const rope_call *call,
                                  const cpu_slice *slice) {
    lanes_run run;
    int64_t left = slice->last_token - slice->first_token;
    run.batch = 0;
    run.index = slice->first_token;
    if (run.index >= call->tokens) {
        run.batch = run.index / call->tokens;
        run.index %= call->tokens;
    }
    for (; left > 0; run.batch++, run.index = 0) {
        run.last = call->tokens - run.index < left ? call->tokens : run.index + left;
        left -= run.last - run.index;
        lanes_rotate_run(dtype, p, call, slice, &run);
    }
    if (slice->exceeds)
        lanes_fence();
}

static CPU_APART void lanes_f32_runs(const rope_problem *p, const rope_call *call,
                                     const cpu_slice *slice) {
    lanes_rotate_runs(ROPE_F32, p, call, slice);
}

static CPU_APART void lanes_f16_runs(const rope_problem *p, const rope_call *call,
                                     const cpu_slice *slice) {
    lanes_rotate_runs(ROPE_F16, p, call, slice);
}

static CPU_APART void lanes_bf16_runs(const rope_problem *p, const rope_call *call,
                                      const cpu_slice *slice) {
    lanes_rotate_runs(ROPE_BF16, p, call, slice);
}

/* The plain road fetches nothing ahead: it is for calls that are near, and for windows of one block
 * that the cache holds where nothing is fetched there. It is for several heads a token, and tokens
 * that all rotate. */
CPU_INLINE int lanes_takes_plain(const rope_problem *p, const rope_call *call,
                                 const cpu_slice *slice) {
    const rope_operand *q = &call->tensor[0], *k = &call->tensor[1];
    const int quiet = slice->near || (!slice->exceeds && lanes_is_block(p->pairs) &&
                                      !lanes_bytes_within(p, slice, 0));
    return quiet && lanes_serves_plain(p) && lanes_is_plain(p, q, 0) && lanes_is_plain(p, k, 1) &&
           !call->position.cu_seqlens && q->heads + k->heads > 1;
}

static void lanes_rotate_f32(const rope_problem *p, const rope_call *call, const cpu_slice *slice) {
    if (lanes_takes_plain(p, call, slice))
        lanes_rotate_plain(lanes_f32_plain_64, lanes_f32_plain, lanes_counts(p, call), p, call,
                           slice);
    else
        lanes_f32_runs(p, call, slice);
}

static void lanes_rotate_f16(const rope_problem *p, const rope_call *call, const cpu_slice *slice) {
    if (lanes_takes_plain(p, call, slice))
        lanes_rotate_plain(lanes_f16_plain_64, lanes_f16_plain, lanes_counts(p, call), p, call,
                           slice);
    else
        lanes_f16_runs(p, call, slice);
}

static void lanes_rotate_bf16(const rope_problem *p, const rope_call *call,
                              const cpu_slice *slice) {
    if (lanes_takes_plain(p, call, slice))
        lanes_rotate_plain(lanes_bf16_plain_64, lanes_bf16_plain, lanes_counts(p, call), p, call,
                           slice);
    else
        lanes_bf16_runs(p, call, slice);
}

#define LANES_ROTATE                                                                               \
    { lanes_rotate_f32, lanes_rotate_f16, lanes_rotate_bf16, cpu_rotate_f64 }

#endif
