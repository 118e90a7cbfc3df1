/*
 * The operators of the namespace ropekit for tensors on the CPU and on a GPU. Their schemas stand
 * in python/ropekit. A boxed kernel owns what the stack holds and leaves its results there.
 */
#include "python/csrc/append.h"
#include "python/csrc/attention.h"
#include "python/csrc/call.h"
#include "python/csrc/failure.h"

#include <stddef.h>
#include <string.h>

/* operator delete of the C++ runtime that PyTorch is linked to, with which it expects the box of an
 * optional argument to be given back. */
void cxx_delete(void *box) __asm__("_ZdlPv");

static AtenTensorHandle to_tensor(StableIValue value) {
    return (AtenTensorHandle)(uintptr_t)value;
}

static const char *take(StableIValue value, tensor *t) {
    return tensor_describe(to_tensor(value), t);
}

static const char *take_optional(StableIValue value, tensor *t) {
    StableIValue *box = (StableIValue *)(uintptr_t)value;
    if (!box)
        return NULL;
    AtenTensorHandle handle = to_tensor(*box);
    cxx_delete(box);
    return tensor_describe(handle, t);
}

/* Arguments in the order of the schemas. Every one is taken, also after an error. */
static const char *take_all(const StableIValue *stack, uint64_t count, int pair, call *c,
                            StringHandle *text) {
    inputs *in = &c->inputs;
    tensor *const optional[] = {
        &in->sequence_offsets, &in->cu_seqlens, &in->sequence_lengths, &in->cos, &in->sin,
        &in->position_flag};
    const char *error = take(*stack++, &c->q), *other;
    if (pair && (other = take(*stack++, &c->k)))
        error = other;
    *text = (StringHandle)(uintptr_t)*stack++;
    uint64_t rest = count - 2 - (uint64_t)pair;
    int ids_alone = rest == 1;
    other =
        ids_alone ? take(*stack++, &in->position_ids) : take_optional(*stack++, &in->position_ids);
    if (other)
        error = other;
    if (ids_alone)
        return error;
    memcpy(&in->position_offset, stack++, sizeof in->position_offset);
    for (uint64_t i = 0; i < rest - 2; i++)
        if ((other = take_optional(*stack++, optional[i])))
            error = other;
    return error;
}

static void release(const tensor *t, size_t count) {
    for (size_t i = 0; i < count; i++)
        tensor_release(&t[i]);
}

static void release_inputs(const inputs *in) {
    const tensor all[] = {in->position_ids, in->sequence_offsets,
                          in->cu_seqlens,   in->sequence_lengths,
                          in->cache_starts, in->cos,
                          in->sin,          in->position_flag};
    release(all, sizeof all / sizeof all[0]);
}

static const char *read_text(StringHandle handle, const char **text, size_t *length) {
    return torch_string_c_str(handle, text) || torch_string_length(handle, length)
               ? fail_last(fail("the configuration is no string"))
               : NULL;
}

/* Raises what an operator ends with, unless NULL. */
static void end(const char *error) {
    aoti_torch_check(!error, "ropekit", "operators.c", 0, error ? error : "");
}

static void run(StableIValue *stack, uint64_t count, int pair, int in_place) {
    call c = {.in_place = in_place};
    StringHandle text;
    const char *error = take_all(stack, count, pair, &c, &text);
    if (!error)
        error = read_text(text, &c.text, &c.text_length);
    if (!error)
        error = call_run(&c);
    torch_delete_string(text);
    release(&c.q, 1);
    release(&c.k, 1);
    release_inputs(&c.inputs);
    if (error)
        call_release_results(&c);
    end(error);
    if (in_place)
        return;
    stack[0] = (uintptr_t)c.q_out.handle;
    if (pair)
        stack[1] = (uintptr_t)c.k_out.handle;
}

static void rotate(StableIValue *stack, uint64_t inputs, uint64_t outputs) {
    (void)outputs;
    run(stack, inputs, 0, 0);
}

static void rotate_pair(StableIValue *stack, uint64_t inputs, uint64_t outputs) {
    (void)outputs;
    run(stack, inputs, 1, 0);
}

static void rotate_in_place(StableIValue *stack, uint64_t inputs, uint64_t outputs) {
    (void)outputs;
    run(stack, inputs, 0, 1);
}

static void rotate_pair_in_place(StableIValue *stack, uint64_t inputs, uint64_t outputs) {
    (void)outputs;
    run(stack, inputs, 1, 1);
}

/* Takes what may be absent, in the order of a schema, whose config is NULL there. Every one is
 * taken, also after an error. */
static const char *take_list(const StableIValue *stack, tensor *const *order, int count,
                             StringHandle *text) {
    const char *error = NULL, *other;
    for (int i = 0; i < count; i++)
        if (!order[i])
            *text = (StringHandle)(uintptr_t)stack[i];
        else if ((other = take_optional(stack[i], order[i])))
            error = other;
    return error;
}

static void release_list(tensor *const *order, int count, StringHandle text) {
    torch_delete_string(text);
    for (int i = 0; i < count; i++)
        if (order[i])
            release(order[i], 1);
}

/* In the order of the schema, where position_offset is the last. */
static void append(StableIValue *stack, uint64_t inputs_count, uint64_t outputs) {
    append_call c = {0};
    inputs *in = &c.inputs;
    tensor *const order[] = {&c.in[PART_Q],
                             &c.in[PART_K],
                             &c.in[PART_V],
                             NULL,
                             &c.out[PART_Q],
                             &c.out[PART_K],
                             &c.out[PART_V],
                             &c.cache[PART_K],
                             &c.cache[PART_V],
                             &c.slots,
                             &in->position_ids,
                             &c.weight[PART_Q],
                             &c.weight[PART_K],
                             &c.weight[PART_V],
                             &c.scale[PART_Q],
                             &c.scale[PART_K],
                             &c.scale[PART_V],
                             &c.block_table,
                             &in->cache_starts,
                             &c.scale_out[PART_Q],
                             &c.scale_out[PART_K],
                             &c.scale_out[PART_V],
                             &in->sequence_offsets,
                             &in->cu_seqlens,
                             &in->sequence_lengths,
                             &in->cos,
                             &in->sin,
                             &in->position_flag};
    enum { TENSORS = sizeof order / sizeof order[0] };
    StringHandle text = NULL;
    (void)inputs_count, (void)outputs;
    const char *error = take_list(stack, order, TENSORS, &text);
    memcpy(&in->position_offset, &stack[TENSORS], sizeof in->position_offset);
    if (!error)
        error = read_text(text, &c.text, &c.text_length);
    if (!error)
        error = append_run(&c);
    release_list(order, TENSORS, text);
    end(error);
}

/* Arguments of a schema of attention from k on: its tensors, then a flag where there is one, and
 * its numbers. */
static const char *take_attention(const StableIValue *stack, attention_call *c, int has_flag,
                                  StringHandle *text) {
    inputs *in = &c->inputs;
    tensor *const order[] = {&c->k,
                             &c->v,
                             NULL,
                             &in->position_ids,
                             &in->cu_seqlens,
                             &in->k_lengths,
                             &c->cache[KEYS],
                             &c->cache[VALUES],
                             &c->block_table,
                             &c->sinks,
                             &in->k_position_ids,
                             &in->k_cu_seqlens,
                             &in->q_lengths,
                             &c->scale[KEYS],
                             &c->scale[VALUES],
                             &c->tree_bits,
                             &in->sequence_offsets,
                             &in->sequence_lengths,
                             &in->cos,
                             &in->sin,
                             &in->position_flag};
    const int tensors = (int)(sizeof order / sizeof order[0]) - !has_flag;
    int64_t *const numbers[] = {&in->position_offset, &c->tree_keys, &c->max_seqlen_k};
    const char *error = take_list(stack, order, tensors, text);
    for (int i = 0; i < 3; i++)
        memcpy(numbers[i], &stack[tensors + i], sizeof *numbers[i]);
    return error ? error : read_text(*text, &c->text, &c->text_length);
}

/* Those of the overload few, from k on. */
static const char *take_few(const StableIValue *stack, attention_call *c, StringHandle *text) {
    tensor *const order[] = {&c->inputs.k_lengths, &c->sinks};
    const char *error = take(stack[0], &c->k), *other = take(stack[1], &c->v);
    *text = (StringHandle)(uintptr_t)stack[2];
    error = error ? error : other;
    other = take_list(stack + 3, order, 2, text);
    error = error ? error : other;
    return error ? error : read_text(*text, &c->text, &c->text_length);
}

/* Those of the overload cached, from config on. */
static const char *take_cached(const StableIValue *stack, attention_call *c, StringHandle *text) {
    tensor *const given[] = {&c->inputs.k_lengths, &c->cache[KEYS], &c->cache[VALUES]};
    tensor *const order[] = {&c->block_table, &c->sinks};
    const char *error = NULL, *other;
    *text = (StringHandle)(uintptr_t)stack[0];
    for (int i = 0; i < 3; i++)
        if ((other = take(stack[1 + i], given[i])))
            error = other;
    other = take_list(stack + 4, order, 2, text);
    error = error ? error : other;
    return error ? error : read_text(*text, &c->text, &c->text_length);
}

static void release_attention(const attention_call *c, StringHandle text) {
    const tensor own[] = {c->q,           c->k,     c->v,         c->cache[KEYS], c->cache[VALUES],
                          c->block_table, c->sinks, c->tree_bits, c->scale[KEYS], c->scale[VALUES]},
                 keys[] = {c->inputs.k_position_ids, c->inputs.k_cu_seqlens, c->inputs.q_lengths,
                           c->inputs.k_lengths};
    torch_delete_string(text);
    release(own, sizeof own / sizeof own[0]);
    release(keys, sizeof keys / sizeof keys[0]);
    release_inputs(&c->inputs);
}

/* How the arguments of an operator are taken, from the one behind q on. */
typedef const char *take_rest(const StableIValue *stack, attention_call *c, StringHandle *text);

static const char *take_plain(const StableIValue *stack, attention_call *c, StringHandle *text) {
    return take_attention(stack, c, 0, text);
}

static const char *take_flagged(const StableIValue *stack, attention_call *c, StringHandle *text) {
    return take_attention(stack, c, 1, text);
}

static void run_attention(StableIValue *stack, take_rest *take_others, attention_call *c) {
    StringHandle text = NULL;
    const char *error = take(stack[0], &c->q), *other = take_others(stack + 1, c, &text);
    error = error ? error : other;
    if (!error)
        error = attention_run(c);
    release_attention(c, text);
    if (error)
        attention_release_results(c);
    end(error);
    stack[0] = (uintptr_t)c->out.handle;
    if (c->wants_lse)
        stack[1] = (uintptr_t)c->lse.handle;
    for (int i = 0; i < STORES && c->wants_rotated; i++)
        stack[2 + i] = (uintptr_t)c->rotated[i].handle;
}

static void attention(StableIValue *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs, (void)outputs;
    run_attention(stack, take_plain, &(attention_call){0});
}

static void attention_few(StableIValue *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs, (void)outputs;
    run_attention(stack, take_few, &(attention_call){0});
}

static void attention_cached(StableIValue *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs, (void)outputs;
    run_attention(stack, take_cached, &(attention_call){0});
}

static void attention_lse(StableIValue *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs, (void)outputs;
    run_attention(stack, take_plain, &(attention_call){.wants_lse = 1});
}

static void attention_flag(StableIValue *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs, (void)outputs;
    run_attention(stack, take_flagged, &(attention_call){.wants_lse = 1});
}

static void attention_explained(StableIValue *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs, (void)outputs;
    run_attention(stack, take_plain, &(attention_call){.explains = 1});
}

static void attention_rotated(StableIValue *stack, uint64_t inputs, uint64_t outputs) {
    (void)inputs, (void)outputs;
    run_attention(stack, take_plain, &(attention_call){.wants_lse = 1, .wants_rotated = 1});
}

/* dout, out and lse, then as attention. */
static void attention_backward(StableIValue *stack, uint64_t inputs, uint64_t outputs) {
    gradient_call c = {0};
    attention_call *f = &c.forward;
    tensor *const first[] = {&c.dout, &f->out, &f->lse, &f->q};
    StringHandle text = NULL;
    (void)inputs, (void)outputs;
    const char *error = NULL, *other;
    for (int i = 0; i < 4; i++)
        if ((other = take(stack[i], first[i])))
            error = other;
    other = take_attention(stack + 4, f, 0, &text);
    error = error ? error : other;
    if (!error)
        error = gradient_run(&c);
    release_attention(f, text);
    for (int i = 0; i < 3; i++)
        tensor_release(first[i]);
    if (error)
        gradient_release_results(&c);
    end(error);
    const tensor *const made[] = {&c.dq, &c.dk, &c.dv, &c.dsinks};
    for (int i = 0; i < 4; i++)
        stack[i] = (uintptr_t)made[i]->handle;
}

static void attention_merge(StableIValue *stack, uint64_t inputs, uint64_t outputs) {
    merge_call c = {0};
    (void)inputs, (void)outputs;
    const char *error = take(stack[0], &c.parts), *other = take(stack[1], &c.parts_lse);
    error = error ? error : other;
    if (!error)
        error = merge_run(&c);
    release(&c.parts, 1);
    release(&c.parts_lse, 1);
    if (error)
        merge_release_results(&c);
    end(error);
    stack[0] = (uintptr_t)c.out.handle;
    stack[1] = (uintptr_t)c.lse.handle;
}

static const struct {
    const char *name;
    void (*kernel)(StableIValue *, uint64_t, uint64_t);
} operators[] = {
    {"rotate", rotate},
    {"rotate_pair", rotate_pair},
    {"rotate_no_grad", rotate},
    {"rotate_pair_no_grad", rotate_pair},
    {"rotate_", rotate_in_place},
    {"rotate_pair_", rotate_pair_in_place},
    {"rotate_no_grad_", rotate_in_place},
    {"rotate_pair_no_grad_", rotate_pair_in_place},
    {"rotate_no_grad.few", rotate},
    {"rotate_pair_no_grad.few", rotate_pair},
    {"rotate_no_grad_.few", rotate_in_place},
    {"rotate_pair_no_grad_.few", rotate_pair_in_place},
    {"rotate_no_grad.ids", rotate},
    {"rotate_pair_no_grad.ids", rotate_pair},
    {"rotate_no_grad_.ids", rotate_in_place},
    {"rotate_pair_no_grad_.ids", rotate_pair_in_place},
    {"append", append},
    {"append_no_grad", append},
    {"attention", attention},
    {"attention_no_grad", attention},
    {"attention_no_grad.few", attention_few},
    {"attention_no_grad.cached", attention_cached},
    {"attention_lse", attention_lse},
    {"attention_lse_no_grad", attention_lse},
    {"attention_flag", attention_flag},
    {"attention_flag_no_grad", attention_flag},
    {"attention_explained", attention_explained},
    {"attention_rotated", attention_rotated},
    {"attention_backward", attention_backward},
    {"attention_merge", attention_merge},
    {"attention_merge_no_grad", attention_merge},
};

/* Loading the library registers the kernels; PyTorch keeps them to its end. */
__attribute__((constructor)) static void register_kernels(void) {
    static const char *const keys[] = {"CPU", "CUDA"};
    for (int k = 0; k < 2; k++) {
        TorchLibraryHandle library = NULL;
        int failed = aoti_torch_library_init_impl("ropekit", keys[k], "ropekit", 0, &library);
        for (size_t i = 0; i < sizeof operators / sizeof operators[0] && !failed; i++)
            failed = torch_library_impl(library, operators[i].name, operators[i].kernel, TORCH_ABI);
    }
}
