/* A case of rope_append as one line: the rotation's, and what append.h adds. */
#include "tests/append/cases.h"
#include "tests/oracle/append_layout.h"
#include "tests/support/repeat.h"

#include <stdio.h>
#include <string.h>

static void add_norm(const rope_norm *n, char *text, size_t room) {
    if (n->type)
        test_append(text, room, " norm=%d/%d offset=%d dim=%d weight=%d/%d rounding=%d eps=%g",
                    n->type, n->scope, n->offset, n->dim, n->weight, n->weight_dtype, n->rounding,
                    n->eps);
}

static void add_tensor(const append_case *c, int32_t tensor, char *text, size_t room) {
    oracle_tensor t = oracle_append_tensor(&c->desc, &c->args, tensor);
    if (t.heads == 0)
        return;
    test_append(text, room, " %c={%lldx%lld%s", "qkv"[tensor], (long long)t.heads, (long long)t.dim,
                !t.t->out             ? ""
                : t.t->out == t.t->in ? " in-place"
                                      : " out");
    add_norm(&t.part->norm, text, room);
    if (t.part->factor != 0)
        test_append(text, room, " factor=%g", t.part->factor);
    test_append(text, room, " store=%d scale=%d", t.store_dtype, t.part->scale);
    const int64_t *s = t.cache_stride;
    if (t.cache)
        test_append(text, room, " cache=%lld,%lld,%lld,%lld,%lld", (long long)s[0], (long long)s[1],
                    (long long)s[2], (long long)s[3], (long long)s[4]);
    test_append(text, room, "}");
}

void append_describe(const append_case *c, const char *kernel) {
    const rope_append_desc *d = &c->desc;
    const rope_desc *r = &d->rope;
    char text[1000];
    const size_t room = sizeof text;
    snprintf(text, room, "kernel=%s dtype=%d rotation=%d", kernel ? kernel : "(chosen)", r->dtype,
             d->rotation);
    if (d->rotation != ROPE_ROTATION_OFF)
        test_append(text, room,
                    " rotary=%d+%d pairing=%d/%d direction=%d angle=%d arithmetic=%d type=%d",
                    r->rotary_offset, r->rotary_dim, r->pairing_in, r->pairing_out, r->direction,
                    r->angle_mode, r->arithmetic, r->rope_type);
    if (r->xpos_scale_base != 0)
        test_append(text, room, " xpos=%g", r->xpos_scale_base);
    test_append(text, room, " shard=%d/%d | batch=%lld tokens=%lld", r->shard, r->shard_size,
                (long long)c->args.rope.batch, (long long)c->args.rope.tokens);
    if (c->args.rope.cu_seqlens)
        test_append(text, room, " sequences=%lld", (long long)c->args.rope.sequences);
    if (d->cache)
        test_append(text, room, " cache=%d source=%d pages=%lldx%lld ring=%lld%s", d->cache,
                    d->k_source, (long long)c->args.pages, (long long)d->page_size,
                    (long long)d->ring, c->args.cache_starts ? " starts" : "");
    for (int32_t i = 0; i < ORACLE_TENSORS; i++)
        add_tensor(c, i, text, room);
    test_append(text, room, "%s", c->base.wild ? " wild" : "");
    test_describe(text);
}
