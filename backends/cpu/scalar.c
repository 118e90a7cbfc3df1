/* The kernel without vector instructions: the bits that every other kernel must reproduce. */
#include "backends/cpu/generic.h"
#include "backends/cpu/generic_f64.h"
#include "backends/cpu/traffic_lines.h"

static void rotate_token(const rope_problem *p, const rope_call *call, const rope_token *token,
                         int64_t batch, int64_t index, const cpu_slice *slice,
                         cpu_row_buffer *buffer) {
    const cpu_row row = cpu_row_at(p, buffer, 0);
    for (int tensor = 0; tensor < 2; tensor++) {
        if (call->tensor[tensor].heads == 0)
            continue;
        if (token->fate == ROPE_TOKEN_PASSES) {
            cpu_pass_heads(p, call, tensor, batch, index, slice);
        } else {
            cpu_fill_row(p, call, token, tensor, &row);
            cpu_rotate_heads(p, call, tensor, batch, index, slice, &row);
        }
    }
}

static void rotate(const rope_problem *p, const rope_call *call, const cpu_slice *slice) {
    cpu_row_buffer buffer;
    for (int64_t i = slice->first_token; i < slice->last_token; i++) {
        int64_t batch = i / call->tokens, index = i % call->tokens;
        rope_token token = rope_token_of(p, call, batch, index);
        rotate_token(p, call, &token, batch, index, slice, &buffer);
    }
}

const cpu_kernel cpu_kernel_scalar = {
    CPU_ISA_SCALAR, {rotate, rotate, rotate, cpu_rotate_f64}, &traffic_lines};
