/*
 * The operators of the namespace ropekit for tensors on the CPU and on a GPU. Their schemas stand
 * in python/ropekit, which compares them with the lists here when it is imported. A boxed kernel
 * owns what the stack holds and leaves its results there.
 */
#include "python/csrc/append.h"
#include "python/csrc/attention.h"
#include "python/csrc/call.h"
#include "python/csrc/failure.h"

#include <string.h>

/* Schemas: FULL has all but a position_flag, FLAGGED all, and the others what most calls give. */
enum {
    FULL = 1,
    FLAGGED = 2,
    FEW = 4,
    IDS = 8,
    CACHED = 16,
    BACKWARD = 32,
    PAIR = 64, /* beside one of them: of q and k */
    WHOLE = FULL | FLAGGED | BACKWARD,
    ANY = WHOLE | FEW | IDS | CACHED
};

/* Raises what an operator ends with, unless NULL. */
static void end(const char *error) {
    aoti_torch_check(!error, "ropekit", "operators.c", 0, error ? error : "");
}

/* ---- rotate ---- */

#define OF(member) offsetof(call, member)
static const argument of_rotation[] = {
    {"q", TENSOR, ANY, ANY, OF(q)},
    {"k", TENSOR, PAIR, PAIR, OF(k)},
    {"config", TEXT, ANY, 0, OF(config)},
    {"position_ids", TENSOR, ANY, IDS, OF(inputs.position_ids)},
    {"position_offset", NUMBER, WHOLE | FEW, 0, OF(inputs.position_offset)},
    {"sequence_offsets", TENSOR, WHOLE, 0, OF(inputs.sequence_offsets)},
    {"cu_seqlens", TENSOR, WHOLE, 0, OF(inputs.cu_seqlens)},
    {"sequence_lengths", TENSOR, WHOLE, 0, OF(inputs.sequence_lengths)},
    {"cos", TENSOR, WHOLE, 0, OF(inputs.cos)},
    {"sin", TENSOR, WHOLE, 0, OF(inputs.sin)},
    {"position_flag", TENSOR, FLAGGED, 0, OF(inputs.position_flag)},
    {0}};
#undef OF

static void rotate(const signature *s, StableIValue *stack, int in_place) {
    call c = {.in_place = in_place};
    const char *error = arguments_take(s, stack, &c);
    if (!error)
        error = call_run(&c);
    arguments_release(s, &c);
    if (error)
        call_release_results(&c);
    end(error);
    if (in_place)
        return;
    stack[0] = (uintptr_t)c.q_out.handle;
    if (s->schema & PAIR)
        stack[1] = (uintptr_t)c.k_out.handle;
}

/* ---- append ---- */

#define OF(member) offsetof(append_call, member)
static const argument of_append[] = {
    {"q", TENSOR, FULL, 0, OF(in[PART_Q])},
    {"k", TENSOR, FULL, 0, OF(in[PART_K])},
    {"v", TENSOR, FULL, 0, OF(in[PART_V])},
    {"config", TEXT, FULL, 0, OF(config)},
    {"q_out", TENSOR, FULL, 0, OF(out[PART_Q])},
    {"k_out", TENSOR, FULL, 0, OF(out[PART_K])},
    {"v_out", TENSOR, FULL, 0, OF(out[PART_V])},
    {"k_cache", TENSOR, FULL, 0, OF(cache[PART_K])},
    {"v_cache", TENSOR, FULL, 0, OF(cache[PART_V])},
    {"slots", TENSOR, FULL, 0, OF(slots)},
    {"positions", TENSOR, FULL, 0, OF(inputs.position_ids)},
    {"q_weight", TENSOR, FULL, 0, OF(weight[PART_Q])},
    {"k_weight", TENSOR, FULL, 0, OF(weight[PART_K])},
    {"v_weight", TENSOR, FULL, 0, OF(weight[PART_V])},
    {"q_scale", TENSOR, FULL, 0, OF(scale[PART_Q])},
    {"k_scale", TENSOR, FULL, 0, OF(scale[PART_K])},
    {"v_scale", TENSOR, FULL, 0, OF(scale[PART_V])},
    {"block_table", TENSOR, FULL, 0, OF(block_table)},
    {"cache_starts", TENSOR, FULL, 0, OF(inputs.cache_starts)},
    {"q_scale_out", TENSOR, FULL, 0, OF(scale_out[PART_Q])},
    {"k_scale_out", TENSOR, FULL, 0, OF(scale_out[PART_K])},
    {"v_scale_out", TENSOR, FULL, 0, OF(scale_out[PART_V])},
    {"sequence_offsets", TENSOR, FULL, 0, OF(inputs.sequence_offsets)},
    {"cu_seqlens", TENSOR, FULL, 0, OF(inputs.cu_seqlens)},
    {"sequence_lengths", TENSOR, FULL, 0, OF(inputs.sequence_lengths)},
    {"cos", TENSOR, FULL, 0, OF(inputs.cos)},
    {"sin", TENSOR, FULL, 0, OF(inputs.sin)},
    {"position_flag", TENSOR, FULL, 0, OF(inputs.position_flag)},
    {"position_offset", NUMBER, FULL, 0, OF(inputs.position_offset)},
    {0}};
#undef OF

static void append(const signature *s, StableIValue *stack) {
    append_call c = {0};
    const char *error = arguments_take(s, stack, &c);
    if (!error)
        error = append_run(&c);
    arguments_release(s, &c);
    end(error);
}

/* ---- attention ---- */

/* A call without a gradient is the part `forward`, which is the first. */
_Static_assert(offsetof(gradient_call, forward) == 0, "forward is the first member");
#define OF(member) offsetof(gradient_call, member)
static const argument of_attention[] = {
    {"dout", TENSOR, BACKWARD, BACKWARD, OF(dout)},
    {"out", TENSOR, BACKWARD, BACKWARD, OF(forward.out)},
    {"lse", TENSOR, BACKWARD, BACKWARD, OF(forward.lse)},
    {"q", TENSOR, ANY, ANY, OF(forward.q)},
    {"k", TENSOR, WHOLE | FEW, FEW, OF(forward.k)},
    {"v", TENSOR, WHOLE | FEW, FEW, OF(forward.v)},
    {"config", TEXT, ANY, 0, OF(forward.config)},
    {"positions", TENSOR, WHOLE, 0, OF(forward.inputs.position_ids)},
    {"cu_seqlens", TENSOR, WHOLE, 0, OF(forward.inputs.cu_seqlens)},
    {"k_lengths", TENSOR, ANY, CACHED, OF(forward.inputs.k_lengths)},
    {"k_cache", TENSOR, WHOLE | CACHED, CACHED, OF(forward.cache[KEYS])},
    {"v_cache", TENSOR, WHOLE | CACHED, CACHED, OF(forward.cache[VALUES])},
    {"block_table", TENSOR, WHOLE | CACHED, 0, OF(forward.block_table)},
    {"sinks", TENSOR, ANY, 0, OF(forward.sinks)},
    {"k_positions", TENSOR, WHOLE, 0, OF(forward.inputs.k_position_ids)},
    {"k_cu_seqlens", TENSOR, WHOLE, 0, OF(forward.inputs.k_cu_seqlens)},
    {"q_lengths", TENSOR, WHOLE, 0, OF(forward.inputs.q_lengths)},
    {"k_scale", TENSOR, WHOLE, 0, OF(forward.scale[KEYS])},
    {"v_scale", TENSOR, WHOLE, 0, OF(forward.scale[VALUES])},
    {"tree_mask", TENSOR, WHOLE, 0, OF(forward.tree_bits)},
    {"sequence_offsets", TENSOR, WHOLE, 0, OF(forward.inputs.sequence_offsets)},
    {"sequence_lengths", TENSOR, WHOLE, 0, OF(forward.inputs.sequence_lengths)},
    {"cos", TENSOR, WHOLE, 0, OF(forward.inputs.cos)},
    {"sin", TENSOR, WHOLE, 0, OF(forward.inputs.sin)},
    {"position_flag", TENSOR, FLAGGED, 0, OF(forward.inputs.position_flag)},
    {"position_offset", NUMBER, WHOLE, 0, OF(forward.inputs.position_offset)},
    {"tree_keys", NUMBER, WHOLE, 0, OF(forward.tree_keys)},
    {"max_seqlen_k", NUMBER, WHOLE, 0, OF(forward.max_seqlen_k)},
    {0}};
#undef OF

static void attend(const signature *s, StableIValue *stack, attention_call *c) {
    const char *error = arguments_take(s, stack, c);
    if (!error)
        error = attention_run(c);
    arguments_release(s, c);
    if (error)
        attention_release_results(c);
    end(error);
    stack[0] = (uintptr_t)c->out.handle;
    if (c->wants_lse)
        stack[1] = (uintptr_t)c->lse.handle;
    for (int i = 0; i < STORES && c->wants_rotated; i++)
        stack[2 + i] = (uintptr_t)c->rotated[i].handle;
}

static void derive(const signature *s, StableIValue *stack) {
    gradient_call c = {0};
    const char *error = arguments_take(s, stack, &c);
    if (!error)
        error = gradient_run(&c);
    arguments_release(s, &c);
    if (error)
        gradient_release_results(&c);
    end(error);
    const tensor *const made[] = {&c.dq, &c.dk, &c.dv, &c.dsinks};
    for (int i = 0; i < 4; i++)
        stack[i] = (uintptr_t)made[i]->handle;
}

static const argument of_merge[] = {{"out", TENSOR, FULL, FULL, offsetof(merge_call, parts)},
                                    {"lse", TENSOR, FULL, FULL, offsetof(merge_call, parts_lse)},
                                    {0}};

static void merge(const signature *s, StableIValue *stack) {
    merge_call c = {0};
    const char *error = arguments_take(s, stack, &c);
    if (!error)
        error = merge_run(&c);
    arguments_release(s, &c);
    if (error)
        merge_release_results(&c);
    end(error);
    stack[0] = (uintptr_t)c.out.handle;
    stack[1] = (uintptr_t)c.lse.handle;
}

/* ---- the operators ---- */

/* A boxed kernel, and the arguments that it takes as `takes`. */
#define KERNEL(name, list, schema, run)                                                            \
    static const signature takes_##name = {list, schema};                                          \
    static void run_##name(StableIValue *stack, uint64_t inputs, uint64_t outputs) {               \
        const signature *takes = &takes_##name;                                                    \
        (void)inputs, (void)outputs;                                                               \
        run;                                                                                       \
    }

KERNEL(rotate, of_rotation, FULL, rotate(takes, stack, 0))
KERNEL(rotate_few, of_rotation, FEW, rotate(takes, stack, 0))
KERNEL(rotate_ids, of_rotation, IDS, rotate(takes, stack, 0))
KERNEL(pair, of_rotation, FULL | PAIR, rotate(takes, stack, 0))
KERNEL(pair_few, of_rotation, FEW | PAIR, rotate(takes, stack, 0))
KERNEL(pair_ids, of_rotation, IDS | PAIR, rotate(takes, stack, 0))
KERNEL(write, of_rotation, FLAGGED, rotate(takes, stack, 1))
KERNEL(write_few, of_rotation, FEW, rotate(takes, stack, 1))
KERNEL(write_ids, of_rotation, IDS, rotate(takes, stack, 1))
KERNEL(write_pair, of_rotation, FLAGGED | PAIR, rotate(takes, stack, 1))
KERNEL(write_pair_few, of_rotation, FEW | PAIR, rotate(takes, stack, 1))
KERNEL(write_pair_ids, of_rotation, IDS | PAIR, rotate(takes, stack, 1))
KERNEL(append, of_append, FULL, append(takes, stack))
KERNEL(attention, of_attention, FULL, attend(takes, stack, &(attention_call){0}))
KERNEL(attention_few, of_attention, FEW, attend(takes, stack, &(attention_call){0}))
KERNEL(attention_cached, of_attention, CACHED, attend(takes, stack, &(attention_call){0}))
KERNEL(lse, of_attention, FULL, attend(takes, stack, &(attention_call){.wants_lse = 1}))
KERNEL(flag, of_attention, FLAGGED, attend(takes, stack, &(attention_call){.wants_lse = 1}))
KERNEL(explained, of_attention, FULL, attend(takes, stack, &(attention_call){.explains = 1}))
KERNEL(rotated, of_attention, FULL,
       attend(takes, stack, &(attention_call){.wants_lse = 1, .wants_rotated = 1}))
KERNEL(backward, of_attention, BACKWARD, derive(takes, stack))
KERNEL(merge, of_merge, FULL, merge(takes, stack))

#define BY(kernel) run_##kernel, &takes_##kernel
static const struct {
    const char *name;
    void (*kernel)(StableIValue *, uint64_t, uint64_t);
    const signature *takes;
} operators[] = {
    {"rotate", BY(rotate)},
    {"rotate_pair", BY(pair)},
    {"rotate_no_grad", BY(rotate)},
    {"rotate_pair_no_grad", BY(pair)},
    {"rotate_", BY(write)},
    {"rotate_pair_", BY(write_pair)},
    {"rotate_no_grad_", BY(write)},
    {"rotate_pair_no_grad_", BY(write_pair)},
    {"rotate_no_grad.few", BY(rotate_few)},
    {"rotate_pair_no_grad.few", BY(pair_few)},
    {"rotate_no_grad_.few", BY(write_few)},
    {"rotate_pair_no_grad_.few", BY(write_pair_few)},
    {"rotate_no_grad.ids", BY(rotate_ids)},
    {"rotate_pair_no_grad.ids", BY(pair_ids)},
    {"rotate_no_grad_.ids", BY(write_ids)},
    {"rotate_pair_no_grad_.ids", BY(write_pair_ids)},
    {"append", BY(append)},
    {"append_no_grad", BY(append)},
    {"attention", BY(attention)},
    {"attention_no_grad", BY(attention)},
    {"attention_no_grad.few", BY(attention_few)},
    {"attention_no_grad.cached", BY(attention_cached)},
    {"attention_lse", BY(lse)},
    {"attention_lse_no_grad", BY(lse)},
    {"attention_flag", BY(flag)},
    {"attention_flag_no_grad", BY(flag)},
    {"attention_explained", BY(explained)},
    {"attention_rotated", BY(rotated)},
    {"attention_backward", BY(backward)},
    {"attention_merge", BY(merge)},
    {"attention_merge_no_grad", BY(merge)},
};

/* The arguments that an operator takes, as arguments_tell has them; none of one that is not there.
 */
ROPE_API const char *ropekit_arguments(const char *name) {
    static _Thread_local char names[1024];
    names[0] = 0;
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++)
        if (strcmp(operators[i].name, name) == 0)
            arguments_tell(operators[i].takes, names, sizeof names);
    return names;
}

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
