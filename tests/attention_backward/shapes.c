#include "tests/attention_backward/shapes.h"

#include "tests/oracle/oracle.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

/* Random numbers, the same ones again at an odd distance: they take most of a test's time. */
static void fill(test_random *r, int32_t dtype, unsigned char *at, size_t count) {
    enum { PERIOD = (1 << 20) - 3 };
    const size_t size = (size_t)oracle_dtype_size(dtype);
    for (size_t i = 0; i < count && i < PERIOD; i++)
        oracle_store(dtype, at, (int64_t)i, random_real(r, -2, 2));
    for (size_t i = PERIOD; i < count; i += PERIOD)
        memcpy(at + i * size, at, size * (count - i < PERIOD ? count - i : PERIOD));
}

/* The next `count` elements of the arena. */
static void *take(unsigned char **at, int32_t dtype, int64_t count) {
    void *taken = *at;
    *at += count * oracle_dtype_size(dtype);
    return taken;
}

void backward_make_shape(backward_case *c, const backward_shape *s) {
    const int64_t heads = s->k_heads * s->shares, keys = s->batch * s->tokens, rows = keys * heads,
                  elements = 2 * (rows + keys * s->k_heads) * (s->dim + s->v_dim);
    const size_t bytes = (size_t)(elements * oracle_dtype_size(s->dtype));
    attention_case *f = &c->forward;
    memset(c, 0, sizeof *c);
    f->base.bytes = (bytes + (size_t)rows * 4 + 64 + 63) / 64 * 64;
    f->base.arena = aligned_alloc(64, f->base.bytes);
    f->base.random = random_stream(test_seed(), s->tokens);
    memset(f->base.arena + bytes, 0, f->base.bytes - bytes);
    fill(&f->base.random, s->dtype, f->base.arena, (size_t)elements);
    f->desc = (rope_attention_desc)ROPE_ATTENTION_DESC_INIT;
    f->desc.rope.dtype = s->dtype;
    f->desc.rope.head_dim = s->dim;
    f->desc.v_head_dim = s->v_dim;
    f->args = (rope_attention_args)ROPE_ATTENTION_ARGS_INIT;
    c->args = (rope_attention_backward_args)ROPE_ATTENTION_BACKWARD_ARGS_INIT;
    rope_attention_args *a = &f->args;
    unsigned char *at = f->base.arena;
    f->parts = a->rope.batch = s->batch;
    a->rope.tokens = a->k_tokens = s->tokens;
    for (int64_t row = 0; row < s->batch; row++)
        f->q_count[row] = f->k_count[row] = s->tokens;
    a->rope.q = (rope_tensor){.in = take(&at, s->dtype, rows * s->dim), .heads = heads};
    a->out.data = take(&at, s->dtype, rows * s->v_dim);
    c->args.dout = take(&at, s->dtype, rows * s->v_dim);
    c->args.dq.data = take(&at, s->dtype, rows * s->dim);
    a->rope.k =
        (rope_tensor){.in = take(&at, s->dtype, keys * s->k_heads * s->dim), .heads = s->k_heads};
    a->v =
        (rope_tensor){.in = take(&at, s->dtype, keys * s->k_heads * s->v_dim), .heads = s->k_heads};
    c->args.dk.data = take(&at, s->dtype, keys * s->k_heads * s->dim);
    c->args.dv.data = take(&at, s->dtype, keys * s->k_heads * s->v_dim);
    a->lse = (float *)take(&at, ROPE_F32, rows);
    for (int64_t i = 0; i < rows; i++)
        a->lse[i] = (float)random_real(&f->base.random, 6, 8);
}

/* --- a sequence alone --- */

void backward_alone(backward_case *one, const backward_case *c, int64_t n) {
    const oracle_attention o = attention_oracle(&c->forward);
    const oracle_part s = oracle_attention_part(&o, n);
    *one = *c;
    rope_attention_args *a = &one->forward.args;
    const int64_t size = oracle_dtype_size(c->forward.desc.rope.dtype),
                  dim = c->forward.desc.rope.head_dim,
                  v_dim = oracle_attention_head_dim(&o, ORACLE_V),
                  rows = (s.q_row * a->rope.tokens + s.q_first) * a->rope.q.heads,
                  keys = (s.k_row * oracle_attention_key_tokens(&o) + s.k_first) * a->rope.k.heads;
    a->rope.q.in = (char *)(uintptr_t)a->rope.q.in + rows * dim * size;
    a->out.data = (char *)(uintptr_t)a->out.data + rows * v_dim * size;
    one->args.dout = (char *)(uintptr_t)one->args.dout + rows * v_dim * size;
    one->args.dq.data = (char *)(uintptr_t)one->args.dq.data + rows * dim * size;
    a->rope.k.in = (char *)(uintptr_t)a->rope.k.in + keys * dim * size;
    a->v.in = (char *)(uintptr_t)a->v.in + keys * v_dim * size;
    one->args.dk.data = (char *)(uintptr_t)one->args.dk.data + keys * dim * size;
    one->args.dv.data = (char *)(uintptr_t)one->args.dv.data + keys * v_dim * size;
    a->lse += rows;
    a->rope.cu_seqlens = a->k_cu_seqlens = a->q_lengths = a->k_lengths = NULL;
    a->rope.sequences = 0;
    one->forward.parts = a->rope.batch = 1;
    a->rope.tokens = one->forward.q_count[0] = s.q_count;
    a->k_tokens = one->forward.k_count[0] = s.k_count;
}

void backward_check_bits(const char *what, const backward_case *c, const unsigned char *result,
                         int64_t n, const backward_case *other, const unsigned char *expected,
                         int64_t m) {
    for (int32_t g = 0; g < GRADIENTS; g++) {
        size_t bytes, same;
        unsigned char *a = backward_rows(c, result, g, n, &bytes),
                      *b = backward_rows(other, expected, g, m, &same);
        CHECK(bytes == same && memcmp(a, b, bytes) == 0,
              "d%c of sequence %lld differs from that %s", "qkv"[g], (long long)n, what);
        free(a);
        free(b);
    }
}
