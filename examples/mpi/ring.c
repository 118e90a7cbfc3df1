/* Ring attention by MPI: each rank holds two chunks of a sequence, in zigzag order, and attends
 * with its queries while keys and values pass from rank to rank.
 *
 *     mpirun -n 4 ring
 *
 * Rank 0 compares the result with a call of all tokens. */
#include <ropekit/attention.h>

#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { Q_HEADS = 4, K_HEADS = 2, HEAD_DIM = 64, CHUNK = 24, CHUNKS = 2, MOST_RANKS = 16 };
enum { TOKENS = CHUNKS * CHUNK, Q = Q_HEADS * HEAD_DIM, K = K_HEADS * HEAD_DIM };

/* Keys and values of a rank's tokens; keys are rotated. */
typedef struct block {
    float k[CHUNKS][CHUNK][K], v[CHUNKS][CHUNK][K];
} block;

/* Results of one chunk of queries over each chunk of keys, in the order of the sequence. */
typedef struct parts {
    float out[CHUNKS * MOST_RANKS][CHUNK][Q], lse[CHUNKS * MOST_RANKS][CHUNK][Q_HEADS];
} parts;

typedef struct layer {
    rope_plan *append, *attend, *merge;
    void *workspace;
    size_t workspace_bytes;
    int rank, ranks;
} layer;

static void check(rope_status status, const char *what) {
    if (status != ROPE_OK) {
        fprintf(stderr, "%s: %s: %s\n", what, rope_status_string(status), rope_last_error());
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* The chunk of the sequence that a rank's chunk i is. */
static int chunk_of(const layer *x, int rank, int i) {
    return i == 0 ? rank : CHUNKS * x->ranks - 1 - rank;
}

static void make_plans(layer *x, int tokens) {
    rope_append_desc append = ROPE_APPEND_DESC_INIT;
    rope_attention_desc attend = ROPE_ATTENTION_DESC_INIT;
    const rope_attention_merge_desc merge = {
        .struct_size = sizeof merge, .dtype = ROPE_F32, .head_dim = HEAD_DIM, .backend = "cpu"};
    const rope_attention_bounds most = {.struct_size = sizeof most,
                                        .batch = 1,
                                        .tokens = tokens,
                                        .k_tokens = tokens,
                                        .sequences = 1,
                                        .q_heads = Q_HEADS,
                                        .k_heads = K_HEADS};
    append.rope.dtype = attend.rope.dtype = ROPE_F32;
    append.rope.head_dim = attend.rope.head_dim = HEAD_DIM;
    append.rope.backend = attend.rope.backend = "cpu";
    append.rope.shard = ROPE_SHARD_ZIGZAG; /* positions of this rank's tokens */
    append.rope.shard_rank = x->rank, append.rope.shard_size = x->ranks;
    attend.rotation = ROPE_ATTENTION_ROTATE_NONE; /* a key is rotated once, where it lives */
    check(rope_append_plan_create(&append, &x->append), "append plan");
    check(rope_attention_plan_create(&attend, &x->attend), "attention plan");
    check(rope_attention_merge_plan_create(&merge, &x->merge), "merge plan");
    check(rope_attention_workspace(x->attend, &most, &x->workspace_bytes), "workspace");
    x->workspace = aligned_alloc(256, (x->workspace_bytes + 255) / 256 * 256);
}

/* Rotates the tokens' q and k, in place. */
static void rotate(const rope_plan *plan, int tokens, float *q, float *k, float *v) {
    rope_append_args args = ROPE_APPEND_ARGS_INIT;
    args.rope.batch = 1, args.rope.tokens = tokens;
    args.rope.q.heads = Q_HEADS, args.rope.k.heads = args.v.heads = K_HEADS;
    args.rope.q.in = args.rope.q.out = q, args.rope.k.in = args.rope.k.out = k;
    args.v.in = args.v.out = v;
    check(rope_append(plan, &args), "append");
}

/* Queries from token `from` on over keys from token `key` on: both are a part of one packed
 * sequence, which begins so far ahead of them. */
static void attend(const layer *x, const int64_t from_key[2], const int64_t tokens[3],
                   const float *const qkv[3], float *out, float *lse) {
    const int64_t whole = tokens[2];
    const int64_t of_queries[] = {-from_key[0], whole - from_key[0]};
    const int64_t of_keys[] = {-from_key[1], whole - from_key[1]};
    rope_attention_args args = ROPE_ATTENTION_ARGS_INIT;
    args.rope.batch = 1, args.rope.tokens = tokens[0], args.k_tokens = tokens[1];
    args.rope.cu_seqlens = of_queries, args.rope.sequences = 1, args.k_cu_seqlens = of_keys;
    args.rope.q.in = qkv[0], args.rope.k.in = qkv[1], args.v.in = qkv[2];
    args.rope.q.heads = Q_HEADS, args.rope.k.heads = args.v.heads = K_HEADS;
    args.out.data = out, args.lse = lse;
    args.workspace = x->workspace, args.workspace_bytes = x->workspace_bytes;
    check(rope_attention(x->attend, &args), "attention");
}

/* This rank's queries over a block, which is rank `of`'s. Keys after a chunk of queries are seen by
 * none of them, and that part has an lse of -infinity. */
static void attend_block(const layer *x, int of, const float q[CHUNKS][CHUNK][Q], const block *b,
                         parts joined[CHUNKS]) {
    for (int i = 0; i < CHUNKS; i++)
        for (int j = 0; j < CHUNKS; j++) {
            const int part = chunk_of(x, of, j);
            const int64_t from[] = {(int64_t)chunk_of(x, x->rank, i) * CHUNK,
                                    (int64_t)part * CHUNK};
            const int64_t tokens[] = {CHUNK, CHUNK, (int64_t)TOKENS * x->ranks};
            const float *const qkv[] = {q[i][0], b->k[j][0], b->v[j][0]};
            attend(x, from, tokens, qkv, joined[i].out[part][0], joined[i].lse[part][0]);
        }
}

static void ring(const layer *x, const float q[CHUNKS][CHUNK][Q], const block *own,
                 float out[CHUNKS][CHUNK][Q]) {
    const int after = (x->rank + 1) % x->ranks, before = (x->rank + x->ranks - 1) % x->ranks;
    block here = *own, coming;
    parts *joined = (parts *)calloc(CHUNKS, sizeof(parts));
    for (int step = 0; step < x->ranks; step++) {
        MPI_Request moving[2];
        MPI_Isend(&here, sizeof here, MPI_BYTE, after, step, MPI_COMM_WORLD, &moving[0]);
        MPI_Irecv(&coming, sizeof coming, MPI_BYTE, before, step, MPI_COMM_WORLD, &moving[1]);
        attend_block(x, (x->rank - step + x->ranks) % x->ranks, q, &here, joined);
        MPI_Waitall(2, moving, MPI_STATUSES_IGNORE);
        here = coming;
    }
    for (int i = 0; i < CHUNKS; i++) {
        rope_attention_merge_args args = {.struct_size = sizeof args};
        args.parts = (int64_t)CHUNKS * x->ranks, args.batch = 1, args.tokens = CHUNK;
        args.heads = Q_HEADS, args.in = joined[i].out, args.in_lse = joined[i].lse[0][0];
        args.out.data = out[i];
        check(rope_attention_merge(x->merge, &args), "merge");
    }
    free(joined);
}

/* --- and all tokens on one rank --- */

static float element(int t, int i) {
    return (float)((t * 17 + i * 37) % 64 - 31) / 16;
}

static void fill(int token, float *q, float *k, float *v) {
    for (int i = 0; i < Q; i++)
        q[i] = element(token, i);
    for (int i = 0; i < K; i++)
        k[i] = element(token, i + Q), v[i] = element(token, -i);
}

static void on_one_rank(const layer *x, float *out) {
    const size_t tokens = (size_t)TOKENS * (size_t)x->ranks;
    float *q = (float *)calloc(tokens, sizeof(float[Q])),
          *k = (float *)calloc(tokens, sizeof(float[K]));
    float *v = (float *)calloc(tokens, sizeof(float[K]));
    rope_append_desc desc = ROPE_APPEND_DESC_INIT;
    rope_plan *append;
    desc.rope.dtype = ROPE_F32, desc.rope.head_dim = HEAD_DIM, desc.rope.backend = "cpu";
    check(rope_append_plan_create(&desc, &append), "append plan");
    for (size_t t = 0; t < tokens; t++)
        fill((int)t, q + t * Q, k + t * K, v + t * K);
    rotate(append, (int)tokens, q, k, v);
    const int64_t from[] = {0, 0}, sizes[] = {(int64_t)tokens, (int64_t)tokens, (int64_t)tokens};
    const float *const qkv[] = {q, k, v};
    attend(x, from, sizes, qkv, out, NULL);
    rope_plan_destroy(append);
    free(q), free(k), free(v);
}

static int compare(const layer *x, const float *all) {
    float *whole = (float *)calloc((size_t)TOKENS * (size_t)x->ranks, sizeof(float[Q]));
    double worst = 0;
    on_one_rank(x, whole);
    for (int r = 0; r < x->ranks; r++)
        for (int i = 0; i < CHUNKS; i++)
            for (int e = 0; e < CHUNK * Q; e++) {
                const float own = whole[chunk_of(x, r, i) * CHUNK * Q + e];
                worst = fmax(worst, fabs((double)all[(r * CHUNKS + i) * CHUNK * Q + e] - own));
            }
    free(whole);
    printf("%d ranks, %d tokens: at most %.2g from one rank\n", x->ranks, TOKENS * x->ranks, worst);
    return !(worst < 1e-5);
}

int main(int argc, char **argv) {
    static float q[CHUNKS][CHUNK][Q], out[CHUNKS][CHUNK][Q];
    static block own;
    layer x = {0};
    int bad = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &x.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &x.ranks);
    if (x.ranks > MOST_RANKS) {
        fprintf(stderr, "%d ranks; allowed is 1..%d\n", x.ranks, MOST_RANKS);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    make_plans(&x, TOKENS * x.ranks);
    for (int i = 0; i < CHUNKS; i++)
        for (int t = 0; t < CHUNK; t++)
            fill(chunk_of(&x, x.rank, i) * CHUNK + t, q[i][t], own.k[i][t], own.v[i][t]);
    rotate(x.append, TOKENS, q[0][0], own.k[0][0], own.v[0][0]);
    ring(&x, q, &own, out);
    float *all = (float *)calloc((size_t)x.ranks, sizeof out);
    MPI_Gather(out, sizeof out, MPI_BYTE, all, sizeof out, MPI_BYTE, 0, MPI_COMM_WORLD);
    if (x.rank == 0)
        bad = compare(&x, all);
    free(all), free(x.workspace);
    rope_plan_destroy(x.append), rope_plan_destroy(x.attend), rope_plan_destroy(x.merge);
    MPI_Finalize();
    return bad;
}
