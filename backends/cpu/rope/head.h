/* One head of a call: where it is, its elements, and copies of what does not rotate. */
#ifndef ROPEKIT_CPU_ROPE_HEAD_H
#define ROPEKIT_CPU_ROPE_HEAD_H

#include "backends/cpu/rope/kernel.h"
#include "common/math/layout.h"

/* One head: its two addresses and what separates its elements. */
typedef struct cpu_head {
    const char *in;
    char *out;
    int64_t in_stride, out_stride; /* elements */
} cpu_head;

static void cpu_copy_elements(int size, const cpu_head *head, int64_t from, int64_t to) {
    if (head->in == head->out || from >= to)
        return;
    if (head->in_stride == 1 && head->out_stride == 1) {
        memcpy(head->out + from * size, head->in + from * size, (size_t)((to - from) * size));
        return;
    }
    for (int64_t i = from; i < to; i++)
        memcpy(head->out + i * head->out_stride * size, head->in + i * head->in_stride * size,
               (size_t)size);
}

/* A head as the call gives it: element 0, not the window. */
CPU_INLINE cpu_head cpu_head_of(const rope_operand *operand, int size, int64_t batch, int64_t token,
                                int64_t head) {
    const int64_t *in = operand->in_stride, *out = operand->out_stride;
    cpu_head h = {(const char *)operand->in + (batch * in[0] + token * in[1] + head * in[2]) * size,
                  (char *)operand->out + (batch * out[0] + token * out[1] + head * out[2]) * size,
                  in[3], out[3]};
    return h;
}

CPU_INLINE cpu_head cpu_window_of(const cpu_head *head, int size, int64_t offset) {
    cpu_head w = {head->in + offset * head->in_stride * size,
                  head->out + offset * head->out_stride * size, head->in_stride, head->out_stride};
    return w;
}

/* From an element's place by one pairing to that by the other. */
CPU_INLINE int cpu_moved_to(const rope_problem *p, int i) {
    const int split = p->pairing_in == ROPE_PAIRING_HALF_SPLIT, pair = split ? i % p->pairs : i / 2,
              second = split ? i >= p->pairs : i % 2;
    return second ? rope_second_of(p->pairing_out, pair, p->pairs)
                  : rope_first_of(p->pairing_out, pair);
}

/* The window moves from one pairing to the other, element by element and bit by bit: in place by
 * going from each element's old place to its new one, whose element is next. */
static CPU_NOINLINE void cpu_move_window(const rope_problem *p, int size, const cpu_head *window) {
    const int64_t from = window->in_stride * size, to = window->out_stride * size;
    uint64_t moved[2 * CPU_MAX_PAIRS / 64] = {0};
    for (int i = 0; i < 2 * p->pairs && window->in != window->out; i++)
        memcpy(window->out + cpu_moved_to(p, i) * to, window->in + i * from, (size_t)size);
    for (int i = 0; i < 2 * p->pairs && window->in == window->out; i++) {
        uint64_t held, next;
        memcpy(&held, window->out + i * to, (size_t)size);
        for (int at = i; !(moved[at / 64] >> at % 64 & 1); held = next) {
            moved[at / 64] |= UINT64_C(1) << at % 64;
            at = cpu_moved_to(p, at);
            memcpy(&next, window->out + at * to, (size_t)size);
            memcpy(window->out + at * to, &held, (size_t)size);
        }
    }
}

/* Of a window that goes in parts: whether it keeps its pairing until all of it moves, since in
 * place a part would be written over others. */
CPU_INLINE int cpu_moves_last(const rope_problem *p, const void *in, const void *out) {
    return in == out && p->pairing_in != p->pairing_out && p->pairs > CPU_PART_PAIRS;
}

/* Of so many pairs the part that begins at one. */
CPU_INLINE cpu_pairs cpu_part_of(int all, int first) {
    const int left = all - first;
    return (cpu_pairs){first, left < CPU_PART_PAIRS ? left : CPU_PART_PAIRS};
}

/* A token that is not rotated: outside every sequence, or outside the table. */
static void cpu_pass_heads(const rope_problem *p, const rope_call *call, int tensor, int64_t batch,
                           int64_t index, const cpu_slice *slice) {
    int size = cpu_dtype_size(p->dtype), offset = p->rotary_offset[tensor];
    for (int64_t h = slice->first_head[tensor]; h < slice->last_head[tensor]; h++) {
        cpu_head head = cpu_head_of(&call->tensor[tensor], size, batch, index, h);
        cpu_head window = cpu_window_of(&head, size, offset);
        cpu_copy_elements(size, &head, 0, offset);
        if (p->pairing_in == p->pairing_out)
            cpu_copy_elements(size, &window, 0, 2 * p->pairs);
        else
            cpu_move_window(p, size, &window);
        cpu_copy_elements(size, &head, offset + 2 * p->pairs, p->head_dim[tensor]);
    }
}

/* A kernel that goes pair by pair: how it fills a part of a token's row, of a type of its own, for
 * q or k, and how it rotates that part of a window by it. */
typedef struct cpu_pairwise {
    void (*fill)(const rope_problem *p, const rope_call *call, const rope_token *token, int tensor,
                 cpu_pairs pairs, void *row);
    void (*rotate)(const rope_problem *p, cpu_pairs pairs, void *row, const cpu_head *window);
} cpu_pairwise;

CPU_INLINE void cpu_rotate_token(const cpu_pairwise *kernel, void *row, const rope_problem *p,
                                 const rope_call *call, const rope_token *token, int tensor,
                                 const cpu_slice *slice, int64_t batch, int64_t index) {
    const rope_operand *o = &call->tensor[tensor];
    const int size = cpu_dtype_size(p->dtype), offset = p->rotary_offset[tensor],
              last = cpu_moves_last(p, o->in, o->out);
    rope_problem part = *p;
    part.pairing_out = last ? p->pairing_in : p->pairing_out;
    for (int first = 0; first < p->pairs; first += CPU_PART_PAIRS) {
        const cpu_pairs pairs = cpu_part_of(p->pairs, first);
        kernel->fill(p, call, token, tensor, pairs, row);
        for (int64_t h = slice->first_head[tensor]; h < slice->last_head[tensor]; h++) {
            const cpu_head head = cpu_head_of(o, size, batch, index, h),
                           window = cpu_window_of(&head, size, offset);
            kernel->rotate(&part, pairs, row, &window);
            if (first + pairs.count < p->pairs)
                continue;
            if (last)
                cpu_move_window(p, size, &window);
            cpu_copy_elements(size, &head, 0, offset);
            cpu_copy_elements(size, &head, offset + 2 * p->pairs, p->head_dim[tensor]);
        }
    }
}

CPU_INLINE void cpu_rotate_pairwise(const cpu_pairwise *kernel, void *row, const rope_problem *p,
                                    const rope_call *call, const cpu_slice *slice) {
    for (int64_t i = slice->first_token; i < slice->last_token; i++) {
        const int64_t batch = i / call->tokens, index = i % call->tokens;
        const rope_token token = rope_token_of(p, call, batch, index);
        for (int t = 0; t < 2; t++) {
            if (call->tensor[t].heads == 0)
                continue;
            if (token.status == ROPE_TOKEN_PASSES)
                cpu_pass_heads(p, call, t, batch, index, slice);
            else
                cpu_rotate_token(kernel, row, p, call, &token, t, slice, batch, index);
        }
    }
}

#endif
