#include "bench/workload/angle_table.h"

#include "bench/output/message.h"
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

bool angle_rule_take(rope_desc *desc, angle_rule *rule) {
    rope_desc exact = *desc;
    exact.angle_mode = ROPE_ANGLE_EXACT;
    exact.table_dtype = exact.table_width = exact.out_of_range = 0;
    if (!succeeded(rope_frequencies(&exact, 0, rule->inv_freq, ROPE_MAX_ROTARY_DIM / 2,
                                    &rule->attention_factor),
                   "frequencies of the tables"))
        return false;
    rule->pairs = (desc->rotary_dim ? desc->rotary_dim : desc->head_dim) / 2;
    /* The frequency fields of rope_desc are its members from rope_type up to position_dtype. */
    size_t first = offsetof(rope_desc, rope_type);
    memset((char *)desc + first, 0, offsetof(rope_desc, position_dtype) - first);
    desc->axis_frequency = 0;
    return true;
}

int64_t angle_table_width(const rope_desc *desc) {
    int64_t rotary_dim = desc->rotary_dim ? desc->rotary_dim : desc->head_dim;
    return desc->table_width == ROPE_TABLE_FULL ? rotary_dim : rotary_dim / 2;
}

void angle_table_row(const rope_desc *desc, const angle_rule *rule, int64_t position, void *cosine,
                     void *sine) {
    int32_t dtype = desc->table_dtype ? desc->table_dtype : ROPE_F32;
    int32_t pairing = desc->pairing_out ? desc->pairing_out : desc->pairing_in;
    int full = desc->table_width == ROPE_TABLE_FULL;
    int64_t step = full && pairing == ROPE_PAIRING_INTERLEAVED ? 2 : 1;
    int64_t twin = !full ? 0 : step == 2 ? 1 : rule->pairs;
    for (int32_t i = 0; i < rule->pairs; i++) {
        float angle = (float)position * (float)rule->inv_freq[i];
        float c = (float)(cos((double)angle) * rule->attention_factor);
        float s = (float)(sin((double)angle) * rule->attention_factor);
        int64_t at = position * angle_table_width(desc) + step * i;
        oracle_store(dtype, cosine, at, (double)c);
        oracle_store(dtype, sine, at, (double)s);
        oracle_store(dtype, cosine, at + twin, (double)c);
        oracle_store(dtype, sine, at + twin, (double)s);
    }
}
