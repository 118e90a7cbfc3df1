/*
 * The operators of the namespace ropekit for tensors on the CPU and on a GPU. Their schemas stand
 * in python/ropekit, which compares them with the lists here when it is imported. A boxed kernel
 * owns what the stack holds and leaves its results there.
 */
#include "python/csrc/append.h"
#include "python/csrc/attention.h"
#include "python/csrc/call.h"
#include "python/csrc/decode.h"

#include <string.h>

/* Schemas: FULL has all but a position_flag, FLAGGED all, and the others what most calls give. */
enum {
    FULL = 1,
    FLAGGED = 2,
    FEW = 4,
    IDS = 8,
    CACHED = 16,
    BACKWARD = 32,
    WHOLE = FULL | FLAGGED | BACKWARD,
    ANY = WHOLE | FEW | IDS | CACHED,
    PAIR = 64,   /* beside one of them: of q and k */
    INTO = 2048, /* the same: with what receives the result */
    /* and what it does beside */
    IN_PLACE = 128,
    LSE = 256,
    ROTATED = 512,
    EXPLAINED = 1024
};

/* Takes the arguments of a call, runs it and gives them back. What is wrong is raised, after what
 * was made has been given back. */
#define CARRY_OUT(s, stack, c, run, release_results)                                               \
    do {                                                                                           \
        const char *error = arguments_take(s, stack, c);                                           \
        error = error ? error : run(c);                                                            \
        arguments_release(s, c);                                                                   \
        if (error)                                                                                 \
            release_results(c);                                                                    \
        aoti_torch_check(!error, "ropekit", "operators.c", 0, error ? error : "");                 \
    } while (0)

/* A tensor that may be None, of the schemas that most arguments are of. */
#define OPTION(name, member)                                                                       \
    { #name, TENSOR, WHOLE, 0, OF(member) }

/* ---- rotate ---- */

#define OF(member) offsetof(call, member)
static const argument rotate_list[] = {
    {"q", TENSOR, ANY, ANY, OF(q)},
    {"k", TENSOR, PAIR, PAIR, OF(k)},
    {"config", TEXT, ANY, 0, OF(config)},
    {"position_ids", TENSOR, ANY, IDS, OF(inputs.position_ids)},
    {"position_offset", NUMBER, WHOLE | FEW, 0, OF(inputs.position_offset)},
    OPTION(sequence_offsets, inputs.sequence_offsets),
    OPTION(cu_seqlens, inputs.cu_seqlens),
    OPTION(sequence_lengths, inputs.sequence_lengths),
    OPTION(cos, inputs.cos),
    OPTION(sin, inputs.sin),
    {"position_flag", TENSOR, FLAGGED, 0, OF(inputs.position_flag)},
    {0}};
#undef OF

static void rotate(const signature *s, StableIValue *stack) {
    call c = {.in_place = (s->schema & IN_PLACE) != 0};
    CARRY_OUT(s, stack, &c, call_run, call_release_results);
    if (c.in_place)
        return;
    stack[0] = (uintptr_t)c.q_out.handle;
    if (s->schema & PAIR)
        stack[1] = (uintptr_t)c.k_out.handle;
}

/* ---- append ---- */

#define OF(member) offsetof(append_call, member)
static const argument append_list[] = {
    OPTION(q, in[PART_Q]),
    OPTION(k, in[PART_K]),
    OPTION(v, in[PART_V]),
    {"config", TEXT, FULL, 0, OF(config)},
    OPTION(q_out, out[PART_Q]),
    OPTION(k_out, out[PART_K]),
    OPTION(v_out, out[PART_V]),
    OPTION(k_cache, cache[PART_K]),
    OPTION(v_cache, cache[PART_V]),
    OPTION(slots, slots),
    OPTION(positions, inputs.position_ids),
    OPTION(q_weight, weight[PART_Q]),
    OPTION(k_weight, weight[PART_K]),
    OPTION(v_weight, weight[PART_V]),
    OPTION(q_scale, scale[PART_Q]),
    OPTION(k_scale, scale[PART_K]),
    OPTION(v_scale, scale[PART_V]),
    OPTION(block_table, block_table),
    OPTION(cache_starts, inputs.cache_starts),
    OPTION(q_scale_out, scale_out[PART_Q]),
    OPTION(k_scale_out, scale_out[PART_K]),
    OPTION(v_scale_out, scale_out[PART_V]),
    OPTION(sequence_offsets, inputs.sequence_offsets),
    OPTION(cu_seqlens, inputs.cu_seqlens),
    OPTION(sequence_lengths, inputs.sequence_lengths),
    OPTION(cos, inputs.cos),
    OPTION(sin, inputs.sin),
    OPTION(position_flag, inputs.position_flag),
    {"position_offset", NUMBER, FULL, 0, OF(inputs.position_offset)},
    {0}};
#undef OF

static void append(const signature *s, StableIValue *stack) {
    append_call c = {0};
    CARRY_OUT(s, stack, &c, append_run, (void));
}

/* ---- attention ---- */

/* A call without a gradient is the part `forward`, which is the first. */
_Static_assert(offsetof(gradient_call, forward) == 0, "forward is the first member");
#define OF(member) offsetof(gradient_call, member)
static const argument attend_list[] = {
    {"dout", TENSOR, BACKWARD, BACKWARD, OF(dout)},
    {"out", TENSOR, BACKWARD, BACKWARD, OF(forward.out)},
    {"lse", TENSOR, BACKWARD, BACKWARD, OF(forward.lse)},
    {"q", TENSOR, ANY, ANY, OF(forward.q)},
    {"k", TENSOR, WHOLE | FEW, FEW, OF(forward.k)},
    {"v", TENSOR, WHOLE | FEW, FEW, OF(forward.v)},
    {"config", TEXT, ANY, 0, OF(forward.config)},
    OPTION(positions, forward.inputs.position_ids),
    OPTION(cu_seqlens, forward.inputs.cu_seqlens),
    {"k_lengths", TENSOR, ANY, CACHED, OF(forward.inputs.k_lengths)},
    {"k_cache", TENSOR, WHOLE | CACHED, CACHED, OF(forward.cache[KEYS])},
    {"v_cache", TENSOR, WHOLE | CACHED, CACHED, OF(forward.cache[VALUES])},
    {"block_table", TENSOR, WHOLE | CACHED, 0, OF(forward.block_table)},
    {"sinks", TENSOR, ANY, 0, OF(forward.sinks)},
    OPTION(k_positions, forward.inputs.k_position_ids),
    OPTION(k_cu_seqlens, forward.inputs.k_cu_seqlens),
    OPTION(q_lengths, forward.inputs.q_lengths),
    OPTION(k_scale, forward.scale[KEYS]),
    OPTION(v_scale, forward.scale[VALUES]),
    OPTION(tree_mask, forward.tree_bits),
    OPTION(sequence_offsets, forward.inputs.sequence_offsets),
    OPTION(sequence_lengths, forward.inputs.sequence_lengths),
    OPTION(cos, forward.inputs.cos),
    OPTION(sin, forward.inputs.sin),
    OPTION(q_weight, forward.weight[0]),
    OPTION(k_weight, forward.weight[1]),
    {"position_flag", TENSOR, FLAGGED, 0, OF(forward.inputs.position_flag)},
    {"position_offset", NUMBER, WHOLE, 0, OF(forward.inputs.position_offset)},
    {"tree_keys", NUMBER, WHOLE, 0, OF(forward.tree_keys)},
    {"max_seqlen_k", NUMBER, WHOLE, 0, OF(forward.max_seqlen_k)},
    {0}};
#undef OF

static void attend(const signature *s, StableIValue *stack) {
    attention_call c = {.wants_lse = (s->schema & LSE) != 0,
                        .wants_rotated = (s->schema & ROTATED) != 0,
                        .explains = (s->schema & EXPLAINED) != 0};
    CARRY_OUT(s, stack, &c, attention_run, attention_release_results);
    stack[0] = (uintptr_t)c.out.handle;
    if (c.wants_lse)
        stack[1] = (uintptr_t)c.lse.handle;
    for (int i = 0; i < STORES && c.wants_rotated; i++)
        stack[2 + i] = (uintptr_t)c.rotated[i].handle;
}

/* dout, out and lse, then as `attend`. */
#define derive_list attend_list
static void derive(const signature *s, StableIValue *stack) {
    gradient_call c = {0};
    CARRY_OUT(s, stack, &c, gradient_run, gradient_release_results);
    const tensor *const made[] = {&c.dq, &c.dk, &c.dv, &c.dsinks, &c.dweight[0], &c.dweight[1]};
    for (int i = 0; i < 6; i++)
        stack[i] = (uintptr_t)made[i]->handle;
}

/* ---- decode ---- */

#define OF(member) offsetof(decode_call, member)
static const argument decode_list[] = {
    {"q", TENSOR, ANY, ANY, OF(append.in[PART_Q])},
    {"k", TENSOR, ANY, ANY, OF(append.in[PART_K])},
    {"v", TENSOR, ANY, 0, OF(append.in[PART_V])},
    {"config", TEXT, ANY, 0, OF(append.config)},
    {"k_cache", TENSOR, ANY, ANY, OF(append.cache[PART_K])},
    {"v_cache", TENSOR, ANY, ANY, OF(append.cache[PART_V])},
    {"k_lengths", TENSOR, ANY, ANY, OF(append.inputs.k_lengths)},
    {"out", TENSOR, INTO, INTO, OF(into)},
    {"block_table", TENSOR, ANY, 0, OF(append.block_table)},
    {"positions", TENSOR, ANY, 0, OF(append.inputs.position_ids)},
    {"q_weight", TENSOR, ANY, 0, OF(append.weight[PART_Q])},
    {"k_weight", TENSOR, ANY, 0, OF(append.weight[PART_K])},
    OPTION(sinks, attention.sinks),
    OPTION(k_scale, append.scale[PART_K]),
    OPTION(v_scale, append.scale[PART_V]),
    OPTION(k_scale_out, append.scale_out[PART_K]),
    OPTION(v_scale_out, append.scale_out[PART_V]),
    OPTION(slots, append.slots),
    OPTION(cu_seqlens, append.inputs.cu_seqlens),
    OPTION(cache_starts, append.inputs.cache_starts),
    OPTION(sequence_offsets, append.inputs.sequence_offsets),
    OPTION(sequence_lengths, append.inputs.sequence_lengths),
    OPTION(v_weight, append.weight[PART_V]),
    OPTION(tree_mask, attention.tree_bits),
    OPTION(k_positions, append.inputs.k_position_ids),
    OPTION(cos, append.inputs.cos),
    OPTION(sin, append.inputs.sin),
    OPTION(position_flag, append.inputs.position_flag),
    {"position_offset", NUMBER, FULL, 0, OF(append.inputs.position_offset)},
    {"tree_keys", NUMBER, FULL, 0, OF(attention.tree_keys)},
    {"max_seqlen_k", NUMBER, FULL, 0, OF(attention.max_seqlen_k)},
    {"max_seqlen_q", NUMBER, FULL, 0, OF(max_seqlen_q)},
    {0}};
#undef OF

static void decode(const signature *s, StableIValue *stack) {
    decode_call c = {.attention.explains = (s->schema & EXPLAINED) != 0};
    CARRY_OUT(s, stack, &c, decode_run, decode_release_results);
    if (!c.into.handle)
        stack[0] = (uintptr_t)c.attention.out.handle;
}

/* ---- merge ---- */

static const argument merge_list[] = {{"out", TENSOR, FULL, FULL, offsetof(merge_call, parts)},
                                      {"lse", TENSOR, FULL, FULL, offsetof(merge_call, parts_lse)},
                                      {0}};

static void merge(const signature *s, StableIValue *stack) {
    merge_call c = {0};
    CARRY_OUT(s, stack, &c, merge_run, merge_release_results);
    stack[0] = (uintptr_t)c.out.handle;
    stack[1] = (uintptr_t)c.lse.handle;
}

/* ---- the operators ---- */

/* An operator, or an overload of one: what runs it, and its schema. */
#define OPERATORS(DEFAULT, OVERLOAD)                                                               \
    DEFAULT(rotate, rotate, FULL)                                                                  \
    DEFAULT(rotate_pair, rotate, FULL | PAIR)                                                      \
    DEFAULT(rotate_no_grad, rotate, FULL)                                                          \
    DEFAULT(rotate_pair_no_grad, rotate, FULL | PAIR)                                              \
    DEFAULT(rotate_, rotate, FLAGGED | IN_PLACE)                                                   \
    DEFAULT(rotate_pair_, rotate, FLAGGED | PAIR | IN_PLACE)                                       \
    DEFAULT(rotate_no_grad_, rotate, FLAGGED | IN_PLACE)                                           \
    DEFAULT(rotate_pair_no_grad_, rotate, FLAGGED | PAIR | IN_PLACE)                               \
    OVERLOAD(rotate_no_grad, few, rotate, FEW)                                                     \
    OVERLOAD(rotate_pair_no_grad, few, rotate, FEW | PAIR)                                         \
    OVERLOAD(rotate_no_grad_, few, rotate, FEW | IN_PLACE)                                         \
    OVERLOAD(rotate_pair_no_grad_, few, rotate, FEW | PAIR | IN_PLACE)                             \
    OVERLOAD(rotate_no_grad, ids, rotate, IDS)                                                     \
    OVERLOAD(rotate_pair_no_grad, ids, rotate, IDS | PAIR)                                         \
    OVERLOAD(rotate_no_grad_, ids, rotate, IDS | IN_PLACE)                                         \
    OVERLOAD(rotate_pair_no_grad_, ids, rotate, IDS | PAIR | IN_PLACE)                             \
    DEFAULT(append, append, FULL)                                                                  \
    DEFAULT(append_no_grad, append, FULL)                                                          \
    DEFAULT(attention, attend, FULL)                                                               \
    DEFAULT(attention_no_grad, attend, FULL)                                                       \
    OVERLOAD(attention_no_grad, few, attend, FEW)                                                  \
    OVERLOAD(attention_no_grad, cached, attend, CACHED)                                            \
    DEFAULT(attention_lse, attend, FULL | LSE)                                                     \
    DEFAULT(attention_lse_no_grad, attend, FULL | LSE)                                             \
    DEFAULT(attention_flag, attend, FLAGGED | LSE)                                                 \
    DEFAULT(attention_flag_no_grad, attend, FLAGGED | LSE)                                         \
    DEFAULT(attention_explained, attend, FULL | EXPLAINED)                                         \
    DEFAULT(attention_rotated, attend, FULL | LSE | ROTATED)                                       \
    DEFAULT(attention_backward, derive, BACKWARD)                                                  \
    DEFAULT(decode, decode, FULL)                                                                  \
    DEFAULT(decode_no_grad, decode, FULL)                                                          \
    DEFAULT(decode_explained, decode, FULL | EXPLAINED)                                            \
    OVERLOAD(decode_no_grad, few, decode, FEW)                                                     \
    OVERLOAD(decode_no_grad, into, decode, FULL | INTO)                                            \
    DEFAULT(attention_merge, merge, FULL)                                                          \
    DEFAULT(attention_merge_no_grad, merge, FULL)

/* A boxed kernel, and the arguments that it takes. */
#define KERNEL(name, run, schema)                                                                  \
    static const signature takes_##name = {run##_list, schema};                                    \
    static void run_##name(StableIValue *stack, uint64_t inputs, uint64_t outputs) {               \
        (void)inputs, (void)outputs;                                                               \
        run(&takes_##name, stack);                                                                 \
    }
#define KERNEL_OF(name, overload, ...) KERNEL(name##_##overload, __VA_ARGS__)
OPERATORS(KERNEL, KERNEL_OF)

#define ROW(name, ...) {#name, run_##name, &takes_##name},
#define ROW_OF(name, overload, ...)                                                                \
    {#name "." #overload, run_##name##_##overload, &takes_##name##_##overload},
static const struct {
    const char *name;
    void (*kernel)(StableIValue *, uint64_t, uint64_t);
    const signature *takes;
} operators[] = {OPERATORS(ROW, ROW_OF)};

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
