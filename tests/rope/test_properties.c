/* What a rotation is, without an oracle: norms, relative positions, adjoints, inverses; and the
 * position schemes that must agree bit for bit. */
#include "tests/rope/compare.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 120, TOKENS = 12, HEADS = 2 };

static int64_t block_elements(const test_case *c) {
    return c->args.tokens * c->args.q.heads * c->desc.head_dim;
}

static void make(test_case *c, int64_t index, int32_t dtype) {
    case_block block = {ROPE_ANGLE_EXACT, dtype, 30, TOKENS, HEADS};
    case_make_block(c, test_seed(), index, &block);
    case_describe(c, NULL);
}

/* x of the arena, a block of f64, after a call of `desc`; x itself is replaced. */
static void apply(test_case *c, const rope_desc *desc, double *x) {
    unsigned char *result = malloc(c->bytes);
    size_t at = (size_t)((unsigned char *)c->args.q.out - c->arena);
    memcpy(c->args.q.out, x, c->bytes - at);
    CHECK_STATUS(ROPE_OK, device_run(c, desc, &c->args, 1, NULL, result));
    memcpy(x, result + at, c->bytes - at);
    free(result);
}

static double *random_block(test_case *c) {
    int64_t n = block_elements(c);
    double *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = random_real(&c->random, -2, 2);
    return x;
}

static double *copy_block(const test_case *c, const double *x) {
    size_t bytes = (size_t)block_elements(c) * sizeof *x;
    return memcpy(malloc(bytes), x, bytes);
}

static double dot(const double *x, const double *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

static void check_norm(const double *x, const double *y, int64_t d, double factor) {
    double before = dot(x, x, d), after = dot(y, y, d);
    CHECK(fabs(after - factor * factor * before) <= 1e-14 * (after + before),
          "|y|^2 is %.17g, |x|^2 is %.17g, attention factor %.17g", after, before, factor);
}

/* Forward scales the length of every head by the attention factor. */
TEST(properties, norm) {
    for (int64_t i = -1; test_next(&i, CASES);) {
        test_case c;
        double inv_freq[CASE_MAX_PAIRS], factor;
        make(&c, i, ROPE_F64);
        double *x = random_block(&c), *y = copy_block(&c, x);
        int64_t d = c.desc.head_dim;
        CHECK_STATUS(ROPE_OK, rope_frequencies(&c.desc, 0, inv_freq, CASE_MAX_PAIRS, &factor));
        apply(&c, &c.desc, y);
        for (int64_t h = 0; h < TOKENS * HEADS; h++)
            check_norm(x + h * d, y + h * d, d, factor);
        free(x);
        free(y);
        case_free(&c);
    }
}

/* Every token holds the same two heads; even tokens' first, odd tokens' second. */
static void check_relative(const test_case *c, const double *y, double limit) {
    int64_t d = c->desc.head_dim;
    double first = dot(y, y + (HEADS + 1) * d, d);
    for (int64_t t = 2; t < TOKENS; t += 2) {
        double other = dot(y + t * HEADS * d, y + ((t + 1) * HEADS + 1) * d, d);
        CHECK(fabs(other - first) <= limit, "at position %lld the product is %.17g, at %lld %.17g",
              (long long)case_block_ids(c)[t], other, (long long)case_block_ids(c)[0], first);
    }
}

/* The product of a rotated q and a rotated k knows only the distance of their positions. */
TEST(properties, relative_position) {
    for (int64_t i = -1; test_next(&i, CASES);) {
        test_case c;
        make(&c, i, ROPE_F64);
        double *x = random_block(&c);
        int64_t d = c.desc.head_dim, distance = random_signed(&c.random, 20);
        double limit = 1e-13 * (double)d * (1 + dot(x, x, d));
        for (int64_t h = HEADS; h < TOKENS * HEADS; h++)
            memcpy(x + h * d, x + h % HEADS * d, (size_t)d * sizeof *x);
        for (int64_t t = 0; t < TOKENS; t += 2)
            case_block_ids(&c)[t + 1] = case_block_ids(&c)[t] + distance;
        apply(&c, &c.desc, x);
        check_relative(&c, x, limit);
        free(x);
        case_free(&c);
    }
}

/* Forward with any pairings, and a direction that reads what it writes. */
static void make_directions(test_case *c, int32_t direction, rope_desc *forward, rope_desc *back) {
    *forward = c->desc;
    forward->pairing_in = (int32_t)random_between(&c->random, 1, 2);
    forward->pairing_out = (int32_t)random_between(&c->random, 1, 2);
    *back = *forward;
    back->direction = direction;
    back->pairing_in = forward->pairing_out;
    back->pairing_out = forward->pairing_in;
}

/* <R x, y> = <x, R' y>. */
TEST(properties, transpose_is_the_adjoint) {
    for (int64_t i = -1; test_next(&i, CASES);) {
        test_case c;
        make(&c, i, ROPE_F64);
        rope_desc forward, transpose;
        make_directions(&c, ROPE_TRANSPOSE, &forward, &transpose);
        double *x = random_block(&c), *y = random_block(&c);
        double *rx = copy_block(&c, x), *ry = copy_block(&c, y);
        int64_t n = block_elements(&c);
        apply(&c, &forward, rx);
        apply(&c, &transpose, ry);
        double left = dot(rx, y, n), right = dot(x, ry, n);
        CHECK(fabs(left - right) <= 1e-14 * (double)n * (1 + fabs(left)),
              "<R x, y> is %.17g, <x, R' y> is %.17g", left, right);
        free(x);
        free(y);
        free(rx);
        free(ry);
        case_free(&c);
    }
}

TEST(properties, inverse_undoes_forward) {
    for (int64_t i = -1; test_next(&i, CASES);) {
        test_case c;
        make(&c, i, ROPE_F64);
        rope_desc forward, inverse;
        make_directions(&c, ROPE_INVERSE, &forward, &inverse);
        double *x = random_block(&c), *y = copy_block(&c, x);
        apply(&c, &forward, y);
        apply(&c, &inverse, y);
        for (int64_t e = 0; e < block_elements(&c); e++)
            CHECK(fabs(x[e] - y[e]) <= 1e-14, "element %lld was %.17g and comes back as %.17g",
                  (long long)e, x[e], y[e]);
        free(x);
        free(y);
        case_free(&c);
    }
}

/* Rotating to p and on by q is rotating to p + q, but for the attention factor. */
TEST(properties, offsets_compose) {
    for (int64_t i = -1; test_next(&i, CASES);) {
        test_case c;
        double inv_freq[CASE_MAX_PAIRS], factor;
        make(&c, i, ROPE_F64);
        CHECK_STATUS(ROPE_OK, rope_frequencies(&c.desc, 0, inv_freq, CASE_MAX_PAIRS, &factor));
        double *x = random_block(&c), *y = copy_block(&c, x);
        int64_t p = random_signed(&c.random, 30), q = random_signed(&c.random, 30);
        c.args.position_ids = NULL;
        c.args.position_offset = p + q;
        apply(&c, &c.desc, x);
        c.args.position_offset = p;
        apply(&c, &c.desc, y);
        for (int64_t t = 0; t < TOKENS; t++)
            case_block_ids(&c)[t] = q;
        c.args.position_ids = c.arena;
        c.args.position_offset = 0;
        apply(&c, &c.desc, y);
        for (int64_t e = 0; e < block_elements(&c); e++)
            CHECK(fabs(y[e] - factor * x[e]) <= 2e-14, "element %lld is %.17g, not %.17g",
                  (long long)e, y[e], factor * x[e]);
        free(x);
        free(y);
        case_free(&c);
    }
}

/* Runs one call and compares the outputs with those of `expected`, bit for bit. */
static void check_same(const test_case *c, const rope_desc *desc, const rope_args *args,
                       const unsigned char *expected, const char *what) {
    unsigned char *result = malloc(c->bytes);
    CHECK_STATUS(ROPE_OK, device_run(c, desc, args, 1, NULL, result));
    size_t at = (size_t)((unsigned char *)args->q.out - c->arena);
    size_t bytes = (size_t)(args->batch * args->tokens * args->q.heads * desc->head_dim *
                            oracle_dtype_size(desc->dtype));
    CHECK(memcmp(result + at, expected + at, bytes) == 0, "%s gives other bits", what);
    free(result);
}

static const int32_t dtypes[] = {ROPE_F32, ROPE_F16, ROPE_BF16, ROPE_F64};

TEST(properties, equal_axes_are_one_axis) {
    for (int64_t i = -1; test_next(&i, CASES);) {
        test_case c;
        make(&c, i, dtypes[i % 4]);
        int32_t pairs = c.desc.head_dim / 2;
        unsigned char *expected = malloc(c.bytes);
        int64_t *ids = case_block_ids(&c);
        for (int a = 1; a < 3; a++)
            memcpy(ids + a * TOKENS, ids, TOKENS * sizeof *ids);
        CHECK_STATUS(ROPE_OK, device_run(&c, &c.desc, &c.args, 1, NULL, expected));
        for (int32_t layout = ROPE_AXES_CHUNKED; layout <= ROPE_AXES_CUSTOM; layout++) {
            rope_desc desc = c.desc;
            desc.axes = 3;
            desc.axis_layout = layout;
            for (int32_t p = 0; p < pairs; p++)
                c.axis[p] = (uint8_t)random_between(&c.random, 0, 2);
            desc.pair_axis = layout == ROPE_AXES_CUSTOM ? c.axis : NULL;
            int32_t third = layout == ROPE_AXES_CUSTOM ? 0 : pairs / 3;
            desc.sections[0] = layout == ROPE_AXES_CUSTOM ? 0 : pairs - 2 * third;
            desc.sections[1] = desc.sections[2] = third;
            check_same(&c, &desc, &c.args, expected, "three equal axes");
        }
        free(expected);
        case_free(&c);
    }
}

TEST(properties, packed_is_padded) {
    for (int64_t i = -1; test_next(&i, CASES);) {
        test_case c;
        make(&c, i, dtypes[i % 4]);
        int64_t *ids = case_block_ids(&c), first = 0;
        unsigned char *expected = malloc(c.bytes);
        int64_t bounds[5] = {0, random_between(&c.random, 0, 4), 5, 5, TOKENS};
        memcpy(ids, bounds, sizeof bounds);
        c.args.position_ids = NULL;
        c.args.position_offset = random_signed(&c.random, 30);
        rope_args packed = c.args;
        packed.cu_seqlens = ids;
        packed.sequences = 4;
        CHECK_STATUS(ROPE_OK, device_run(&c, &c.desc, &packed, 1, NULL, expected));
        for (int s = 0; s < 4; s++) {
            rope_args one = c.args;
            one.tokens = bounds[s + 1] - first;
            one.q.in = one.q.out = (char *)c.args.q.out + first * HEADS * c.desc.head_dim *
                                                              oracle_dtype_size(c.desc.dtype);
            check_same(&c, &c.desc, &one, expected, "a sequence alone");
            first = bounds[s + 1];
        }
        free(expected);
        case_free(&c);
    }
}

/* Tokens first..first+count-1 of a block under a shard hold what those of the whole hold. */
static void check_part(const test_case *c, int32_t shard, int32_t rank, int32_t size,
                       const int64_t first[2], int64_t count, const unsigned char *whole) {
    test_case part = *c;
    int64_t row = HEADS * c->desc.head_dim * oracle_dtype_size(c->desc.dtype);
    int64_t chunks = shard == ROPE_SHARD_ZIGZAG ? 2 : 1;
    size_t at = (size_t)((unsigned char *)c->args.q.out - c->arena);
    unsigned char *result = malloc(c->bytes);
    part.arena = malloc(c->bytes);
    memcpy(part.arena, c->arena, c->bytes);
    for (int64_t k = 0; k < chunks; k++)
        memcpy(part.arena + at + k * count * row, c->arena + at + first[k] * row,
               (size_t)(count * row));
    case_relocate(&part.args, c->arena, part.arena);
    part.args.tokens = chunks * count;
    part.desc.shard = shard;
    part.desc.shard_rank = rank;
    part.desc.shard_size = size;
    CHECK_STATUS(ROPE_OK, device_run(&part, &part.desc, &part.args, 1, NULL, result));
    for (int64_t k = 0; k < chunks; k++)
        CHECK(memcmp(result + at + k * count * row, whole + at + first[k] * row,
                     (size_t)(count * row)) == 0,
              "chunk %lld of rank %d of %d differs from the whole", (long long)k, rank, size);
    free(part.arena);
    free(result);
}

TEST(properties, shards_are_the_whole) {
    for (int64_t i = -1; test_next(&i, CASES);) {
        test_case c;
        make(&c, i, dtypes[i % 4]);
        unsigned char *whole = malloc(c.bytes);
        c.args.position_ids = NULL;
        c.args.position_offset = random_signed(&c.random, 30);
        CHECK_STATUS(ROPE_OK, device_run(&c, &c.desc, &c.args, 1, NULL, whole));
        for (int32_t size = 1; size <= 3; size++)
            for (int32_t rank = 0; rank < size; rank++) {
                int64_t part = TOKENS / size, chunk = part / 2;
                int64_t contiguous[2] = {rank * part, 0};
                int64_t zigzag[2] = {rank * chunk, (2 * size - 1 - rank) * chunk};
                check_part(&c, ROPE_SHARD_CONTIGUOUS, rank, size, contiguous, part, whole);
                check_part(&c, ROPE_SHARD_ZIGZAG, rank, size, zigzag, chunk, whole);
            }
        free(whole);
        case_free(&c);
    }
}

/* The offset of a call, that of a sequence and the ids are one sum. */
TEST(properties, offsets_add) {
    for (int64_t i = -1; test_next(&i, CASES);) {
        test_case c;
        make(&c, i, dtypes[i % 4]);
        int64_t *ids = case_block_ids(&c), *offset = ids + TOKENS;
        int64_t shift = random_signed(&c.random, 30);
        *offset = random_signed(&c.random, 30);
        unsigned char *expected = malloc(c.bytes);
        for (int t = 0; t < TOKENS; t++)
            ids[t] += shift + *offset;
        CHECK_STATUS(ROPE_OK, device_run(&c, &c.desc, &c.args, 1, NULL, expected));
        for (int t = 0; t < TOKENS; t++)
            ids[t] -= shift + *offset;
        c.args.position_offset = shift;
        c.args.sequence_offsets = offset;
        check_same(&c, &c.desc, &c.args, expected, "the sum of offsets");
        free(expected);
        case_free(&c);
    }
}
