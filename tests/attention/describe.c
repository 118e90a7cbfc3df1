/* A case of rope_attention as one line. */
#include "tests/attention/norms.h"
#include "tests/support/repeat.h"

#include <stdio.h>
#include <string.h>

static void add_mask(const rope_attention_desc *d, const rope_attention_args *a, char *text,
                     size_t room) {
    test_append(text, room, " mask=%d", d->mask);
    if (d->window || d->window_right)
        test_append(text, room, " window=%lld,%lld", (long long)d->window,
                    (long long)d->window_right);
    if (d->chunk)
        test_append(text, room, " chunk=%lld", (long long)d->chunk);
    if (a->tree_keys)
        test_append(text, room, " tree=%lld", (long long)a->tree_keys);
    if (d->scale != 0 || d->soft_cap != 0)
        test_append(text, room, " scale=%g cap=%g", d->scale, d->soft_cap);
    if (d->sink_dtype)
        test_append(text, room, " sinks=%d", d->sink_dtype);
    if (d->nondeterministic)
        test_append(text, room, " nondeterministic");
}

static void add_cache(const attention_case *c, char *text, size_t room) {
    const rope_attention_store *k = &c->desc.k, *v = &c->desc.v;
    if (c->desc.cache)
        test_append(text, room, " cache=%d pages=%lldx%lld ring=%lld k=%d/%d/%d v=%d/%d/%d",
                    c->desc.cache, (long long)c->args.pages, (long long)c->desc.page_size,
                    (long long)c->desc.ring, k->dtype, k->scale, k->dim_block, v->dtype, v->scale,
                    v->dim_block);
}

static void add_parts(const attention_case *c, char *text, size_t room) {
    const rope_attention_args *a = &c->args;
    test_append(text, room, " | heads=%lld/%lld", (long long)a->rope.q.heads,
                (long long)a->rope.k.heads);
    test_append(text, room, a->rope.cu_seqlens ? " packed" : " %lldx%lld", (long long)a->rope.batch,
                (long long)a->rope.tokens);
    for (int64_t s = 0; s < c->parts; s++)
        test_append(text, room, " %lld:%lld", (long long)c->q_count[s], (long long)c->k_count[s]);
    test_append(text, room, "%s%s%s%s%s%s", a->rope.q.out ? " q.out" : "",
                a->rope.k.out ? " k.out" : "", a->rope.position_ids ? " ids" : "",
                a->k_position_ids ? " k.ids" : "", a->rope.sequence_offsets ? " offsets" : "",
                a->lse ? " lse" : "");
}

void attention_describe(const attention_case *c, const char *kernel) {
    const rope_attention_desc *d = &c->desc;
    const rope_desc *r = &d->rope;
    char text[1000];
    const size_t room = sizeof text;
    snprintf(text, room, "kernel=%s dtype=%d dim=%d/%d rotation=%d", kernel ? kernel : "(chosen)",
             r->dtype, r->head_dim, d->v_head_dim, d->rotation);
    if (d->rotation != ROPE_ATTENTION_ROTATE_NONE)
        test_append(text, room, " rotary=%d+%d pairing=%d/%d direction=%d angle=%d type=%d axes=%d",
                    r->rotary_offset, r->rotary_dim, r->pairing_in, r->pairing_out, r->direction,
                    r->angle_mode, r->rope_type, r->axes);
    attention_describe_norms(c, text, room);
    add_mask(d, &c->args, text, room);
    add_cache(c, text, room);
    add_parts(c, text, room);
    test_append(text, room, "%s", c->base.wild ? " wild" : "");
    test_describe(text);
}
