/* The kernel of a vector ISA: what its lanes cannot do goes the way of generic.h. */
#ifndef ROPEKIT_CPU_KERNEL_LANES_H
#define ROPEKIT_CPU_KERNEL_LANES_H

#include "backends/cpu/dispatch_lanes.h"
#include "backends/cpu/generic_f64.h"
#include "backends/cpu/lone_lanes.h"
#include "backends/cpu/plain_lanes.h"
#include "backends/cpu/table_lanes.h"

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
 * that the cache holds where nothing of whole heads is fetched there. It is for several heads a
 * token, and tokens that all rotate. */
CPU_INLINE int lanes_takes_plain(const rope_problem *p, const rope_call *call,
                                 const cpu_slice *slice) {
    const rope_operand *q = &call->tensor[0], *k = &call->tensor[1];
    const int quiet = slice->near || (!slice->exceeds && lanes_is_block(p->pairs) &&
                                      !lanes_bytes_within(p, slice, 0));
    return quiet && lanes_serves_plain(p) && lanes_is_plain(q) && lanes_is_plain(k) &&
           !call->position.cu_seqlens && q->heads + k->heads > 1;
}

static void lanes_rotate_f32(const rope_problem *p, const rope_call *call, const cpu_slice *slice) {
    if (lanes_takes_plain(p, call, slice))
        lanes_rotate_plain(&lanes_f32_plain, lanes_counts(p, call), p, call, slice);
    else
        lanes_f32_runs(p, call, slice);
}

static void lanes_rotate_f16(const rope_problem *p, const rope_call *call, const cpu_slice *slice) {
    if (lanes_takes_plain(p, call, slice))
        lanes_rotate_plain(&lanes_f16_plain, lanes_counts(p, call), p, call, slice);
    else
        lanes_f16_runs(p, call, slice);
}

static void lanes_rotate_bf16(const rope_problem *p, const rope_call *call,
                              const cpu_slice *slice) {
    if (lanes_takes_plain(p, call, slice))
        lanes_rotate_plain(&lanes_bf16_plain, lanes_counts(p, call), p, call, slice);
    else
        lanes_bf16_runs(p, call, slice);
}

#define LANES_ROTATE                                                                               \
    { lanes_rotate_f32, lanes_rotate_f16, lanes_rotate_bf16, cpu_rotate_f64 }

#endif
