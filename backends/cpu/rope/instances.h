/* The instances of each dtype, compiled by the file that includes this with its vectors. */
#ifndef ROPEKIT_CPU_ROPE_INSTANCES_H
#define ROPEKIT_CPU_ROPE_INSTANCES_H

#include "backends/cpu/rope/single_head.h"

/* One cos and sin for each pair, which stays where it is. */
#define ROPE_HEADS(name, d, pairing, count, around)                                                \
    static void name(const cpu_heads *heads, int tensors, const cpu_cos_sin_row *rows,             \
                     int tokens) {                                                                 \
        const rope_kind kind = {.dtype = d,                                                        \
                                .pairing_in = pairing,                                             \
                                .pairing_out = pairing,                                            \
                                .pairs = count,                                                    \
                                .stream = around};                                                 \
        rope_kind split = kind;                                                                    \
        split.split_loads = rope_may_split_loads(kind);                                            \
        if (split.split_loads && rope_splits_loads(kind, heads))                                   \
            rope_rotate_heads(split, heads, tensors, rows, tokens);                                \
        else                                                                                       \
            rope_rotate_heads(kind, heads, tensors, rows, tokens);                                 \
    }

#define ROPE_SINGLE(name, d, pairing, around)                                                      \
    static void name(const cpu_heads *head, int64_t position, int64_t tokens, int streams) {       \
        const rope_kind kind = {                                                                   \
            .dtype = d, .pairing_in = pairing, .pairing_out = pairing, .stream = around};          \
        rope_rotate_single(kind, head, position, tokens, streams);                                 \
    }

/* rotate_f32_half_split_32_cached and so on: dtype, pairing, pairs, stores. What each gains on Zen
 * 4, in one run: 32 and 64 pairs around the cache a third to two fifths of the time of 16-bit heads
 * of 64 pairs, within it up to a twelfth for f32 and 1 to 2 % otherwise; single heads half of the
 * time of a row in memory. */
#define ROPE_PAIRING(name, d, pairing)                                                             \
    ROPE_HEADS(name##_32_cached, d, pairing, 32, 0)                                                \
    ROPE_HEADS(name##_32_stream, d, pairing, 32, 1)                                                \
    ROPE_HEADS(name##_64_cached, d, pairing, 64, 0)                                                \
    ROPE_HEADS(name##_64_stream, d, pairing, 64, 1)                                                \
    ROPE_HEADS(name##_any_cached, d, pairing, 0, 0)                                                \
    ROPE_HEADS(name##_any_stream, d, pairing, 0, 1)                                                \
    ROPE_SINGLE(name##_single_cached, d, pairing, 0)                                               \
    ROPE_SINGLE(name##_single_stream, d, pairing, 1)

#define ROPE_TABLE_OF(name)                                                                        \
    {                                                                                              \
        {name##_32_cached, name##_32_stream}, {name##_64_cached, name##_64_stream}, {              \
            name##_any_cached, name##_any_stream                                                   \
        }                                                                                          \
    }

/* Seventeen instances and their table: of this file alone where scope is static. */
#define ROPE_INSTANCES(scope, name, d)                                                             \
    ROPE_PAIRING(rotate_##name##_half_split, d, ROPE_PAIRING_HALF_SPLIT)                           \
    ROPE_PAIRING(rotate_##name##_interleaved, d, ROPE_PAIRING_INTERLEAVED)                         \
    static void rotate_##name##_general(const cpu_heads *heads, int tensors,                       \
                                        const cpu_cos_sin_row *rows, int tokens) {                 \
        for (int t = 0; t < tensors; t++)                                                          \
            rope_rotate_general(d, &heads[t], rows, tokens);                                       \
    }                                                                                              \
    scope const cpu_rope_instances cpu_rope_##name = {                                             \
        {ROPE_TABLE_OF(rotate_##name##_half_split), ROPE_TABLE_OF(rotate_##name##_interleaved)},   \
        rotate_##name##_general,                                                                   \
        {{rotate_##name##_half_split_single_cached, rotate_##name##_half_split_single_stream},     \
         {rotate_##name##_interleaved_single_cached, rotate_##name##_interleaved_single_stream}}};

#endif
