/* What a call reads beside its tensors: positions, sequences, tables; and the flag it may raise. */
#ifndef ROPEKIT_PYTHON_INPUTS_H
#define ROPEKIT_PYTHON_INPUTS_H

#include "python/csrc/tensor.h"

/* Names as in rope_args, rope_append_args and rope_attention_args. */
typedef struct inputs {
    int64_t position_offset;
    tensor position_ids, sequence_offsets, cu_seqlens, sequence_lengths, cache_starts;
    tensor k_position_ids, k_cu_seqlens, q_lengths, k_lengths; /* of attention */
    tensor cos, sin, position_flag;
} inputs;

/* Refuses a tensor that is given on another device than the lead. */
const char *check_device(const tensor *lead, const tensor *t, const char *name);

/* Refuses what is no tensor of int32 or int64 on the lead's device. */
const char *check_index(const tensor *lead, const tensor *t, const char *name);

/* Refuses a tensor that is given and of which every element has one address. */
const char *check_repeats(const tensor *t, const char *name, const char *use);

/* The sizes of t, as "2, 5". */
const char *shape_of(const tensor *t, char text[128]);

/* Checks what needs no plan. *dtype is the type of all index tensors, or 0 where they differ. */
const char *inputs_check(const inputs *in, const tensor *lead, int32_t *dtype);

/* The library takes index tensors of one type: of two, all become int64. What is made is given
 * back by inputs_release_widened, after an error too. */
enum { INDICES = 9 };
const char *inputs_widen(inputs *in, AtenTensorHandle made[INDICES]);
void inputs_release_widened(AtenTensorHandle made[INDICES]);

/* Fills what they say of args, whose batch and tokens are known, and the lead's stream. */
const char *inputs_put(const inputs *in, const tensor *lead, const rope_desc *desc,
                       rope_args *args);

/* Position ids [axes, batch, tokens]: axes only where there are several, batch only where it
 * differs.
 */
const char *put_positions(const tensor *ids, const char *name, const int64_t extent[3],
                          const void **data, int64_t stride[3]);

/* A list of one number a sequence, or NULL where it is not given. */
const char *put_list(const tensor *t, const char *name, int64_t sequences, const void **list);

/* Entries of cache_starts, one a sequence, or NULL. */
const char *inputs_starts(const inputs *in, const rope_args *args, const void **starts);

#endif
