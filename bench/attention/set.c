#include "bench/attention/set.h"

bool attention_rotates(const attention_state *s, int tensor) {
    return tensor == ATTENTION_Q   ? s->desc.rotation != ROPE_ATTENTION_ROTATE_NONE
           : tensor == ATTENTION_K ? s->desc.rotation == ROPE_ATTENTION_ROTATE_QK
                                   : false;
}

int64_t attention_heads_of(const options *o, int tensor) {
    return tensor == ATTENTION_Q ? o->q_heads : o->k_heads;
}

int64_t attention_dim_of(const options *o, int tensor) {
    return tensor == ATTENTION_V ? attention_v_head_dim(o) : o->desc.head_dim;
}

bool attention_lse_by_heads(const attention_state *s) {
    return s->o->backward && s->args.rope.sequences == 0;
}
