/* The caller's tables of angle mode table, made as fp32 frameworks make theirs. */
#ifndef ROPEKIT_BENCH_ANGLE_TABLE_H
#define ROPEKIT_BENCH_ANGLE_TABLE_H

#include <ropekit/rope.h>

#include <stdbool.h>

/* A rule's frequencies, from which tables are filled. */
typedef struct angle_rule {
    double inv_freq[ROPE_MAX_ROTARY_DIM / 2];
    double attention_factor;
    int32_t pairs;
} angle_rule;

/* Takes the frequency rule out of a descriptor of angle mode table, which may not hold one;
 * false after a message. */
bool angle_rule_take(rope_desc *desc, angle_rule *rule);
/* Entries of a row of the tables. */
int64_t angle_table_width(const rope_desc *desc);
/* Fills the row of table_dtype of a position: the cos and sin of the fp32 product of position and
 * frequency, times the attention factor. */
void angle_table_row(const rope_desc *desc, const angle_rule *rule, int64_t position, void *cosine,
                     void *sine);

#endif
