/* Rows of a block: queries of one key head in the order [query, head], and the keys they see. */
#ifndef ROPEKIT_GPU_ATTENTION_ROWS_H
#define ROPEKIT_GPU_ATTENTION_ROWS_H

#include "backends/gpu/attention/rotate.h"

struct gpu_attention_row {
    int64_t query, head; /* of its sequence, of q */
    rope_key_range seen; /* but for the bits of a tree */
    rope_token token;    /* where queries rotate here, or may have no position */
    int32_t live;
};

/* Whether a sequence has so few queries that the kernel of splits reads its keys. */
GPU_FN bool gpu_is_decoded(const rope_attention_call *call, const rope_attention_sequence *s) {
    return s->q_count * gpu_attention_group(call) <= GPU_SPLIT_ROWS;
}

/* Whether a query may have no position. */
GPU_FN bool gpu_queries_may_fail(const rope_attention_problem *p) {
    return p->rotates[0] && p->rope.angle_mode == ROPE_ANGLE_TABLE &&
           p->rope.out_of_range == ROPE_OUT_OF_RANGE_ERROR;
}

/* Whether queries rotate in the kernel that attends. */
GPU_FN bool gpu_rotates_queries(const rope_attention_problem *p, const rope_attention_call *call) {
    return p->rotates[0] && !call->rope.tensor[0].out;
}

/* Row `row` of a sequence. A query without a position is left out. */
GPU_FN void gpu_attention_row_read(const rope_attention_problem *p, const rope_attention_call *call,
                                   const rope_attention_sequence *s, int64_t row, int64_t key_head,
                                   gpu_attention_row *r) {
    const int64_t group = gpu_attention_group(call);
    r->query = row / group;
    r->head = key_head * group + row % group;
    r->live = r->query < s->q_count;
    r->seen.begin = r->seen.end = 0;
    if (!r->live)
        return;
    if (p->rotates[0]) {
        rope_query_token(p, call, s, r->query, &r->token);
        if (r->token.status == ROPE_TOKEN_FAILS) {
            r->live = 0;
            gpu_attention_flag(call);
            return;
        }
    }
    r->seen = rope_keys_seen(p, s, rope_query_index(s, r->query));
}

/* Keys that any of `count` rows sees. */
GPU_FN rope_key_range gpu_attention_seen(const gpu_attention_row *rows, int count) {
    rope_key_range all = {0, 0};
    for (int r = 0; r < count; r++) {
        const rope_key_range seen = rows[r].seen;
        if (seen.begin >= seen.end)
            continue;
        all.begin = all.end == 0 || seen.begin < all.begin ? seen.begin : all.begin;
        all.end = seen.end > all.end ? seen.end : all.end;
    }
    return all;
}

/* Whether a row sees a key, but for what a tree says; and with that. */
GPU_FN bool gpu_attention_near(const gpu_attention_row *r, int64_t key) {
    return key >= r->seen.begin && key < r->seen.end;
}

GPU_FN bool gpu_attention_sees(const rope_attention_problem *p, const rope_attention_call *call,
                               const rope_attention_sequence *s, const gpu_attention_row *r,
                               int64_t key) {
    return gpu_attention_near(r, key) &&
           (p->mask != ROPE_MASK_TREE || rope_tree_sees(p, call, s, r->query, key));
}

/* A logit of a product of query and key. */
GPU_FN float gpu_attention_logit(const rope_attention_problem *p, float product) {
    const float x = product * p->scale;
    return p->soft_cap > 0 ? p->soft_cap * tanhf(x / p->soft_cap) : x;
}

#endif
