/* Gradients of long sequences, whose tiles of keys may wait for each other, have one set of bits
 * while other streams keep the GPU busy with the same. */
#include "tests/gpu/fixture.h"
#include "tests/support/random.h"

#include <ropekit/attention.h>

#include <stdlib.h>
#include <string.h>

enum { STREAMS = 3, ROUNDS = 17, TOKENS = 2005, Q = 33, K = 11, DIM = 64 };

/* Elements of q and of k, of all that a call reads ahead of lse, and of gradients. */
enum {
    OF_Q = TOKENS * Q * DIM,
    OF_K = TOKENS * K * DIM,
    READ = 3 * OF_Q + 2 * OF_K,
    WRITTEN = OF_Q + 2 * OF_K
};

/* A stream, and what its calls write. */
typedef struct lane {
    void *gradients, *workspace;
    gpuStream_t stream;
} lane;

static size_t read_bytes(void) {
    return READ * sizeof(uint16_t) + TOKENS * Q * sizeof(float);
}

/* Numbers of f16 in [1, 2) or [-2, -1), and lse near 7. */
static void *make_inputs(rope_device *device) {
    uint16_t *x = malloc(read_bytes());
    float *lse = (float *)(void *)(x + READ);
    test_random r = random_stream(test_seed(), 0);
    void *memory = NULL;
    for (int64_t i = 0; i < READ; i++)
        x[i] = (uint16_t)((random_bits(&r) & 0x83ff) | 0x3c00);
    for (int64_t i = 0; i < TOKENS * Q; i++)
        lse[i] = (float)random_real(&r, 6, 8);
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device, read_bytes(), &memory));
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device, memory, x, read_bytes()));
    free(x);
    return memory;
}

static rope_plan *plan_of(size_t *bytes) {
    const rope_attention_bounds bounds = {sizeof bounds, 1, TOKENS, TOKENS, 0, Q, K};
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    rope_plan *plan = NULL;
    desc.rope.dtype = ROPE_F16;
    desc.rope.head_dim = DIM;
    desc.rope.backend = GPU_BACKEND_NAME;
    desc.tuning = "";
    CHECK_STATUS(ROPE_OK, rope_attention_backward_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_attention_backward_workspace(plan, &bounds, bytes));
    return plan;
}

static void differentiate(const rope_plan *plan, uint16_t *in, const lane *l, size_t bytes) {
    rope_attention_args forward = ROPE_ATTENTION_ARGS_INIT;
    rope_attention_backward_args args = ROPE_ATTENTION_BACKWARD_ARGS_INIT;
    uint16_t *gradients = l->gradients;
    forward.rope.batch = 1;
    forward.rope.tokens = TOKENS;
    forward.rope.q = (rope_tensor){.in = in, .heads = Q};
    forward.rope.k = (rope_tensor){.in = in + 3 * OF_Q, .heads = K};
    forward.rope.stream = l->stream;
    forward.v = (rope_tensor){.in = in + 3 * OF_Q + OF_K, .heads = K};
    forward.out.data = in + OF_Q;
    forward.lse = (float *)(void *)(in + READ);
    forward.workspace = l->workspace;
    forward.workspace_bytes = bytes;
    args.forward = &forward;
    args.dout = in + 2 * OF_Q;
    args.dq.data = gradients;
    args.dk.data = gradients + OF_Q;
    args.dv.data = gradients + OF_Q + OF_K;
    CHECK_STATUS(ROPE_OK, rope_attention_backward(plan, &args));
}

TEST(backward_streams, long_sequences_side_by_side) {
    rope_device *device = fixture_device(0);
    lane lanes[STREAMS];
    size_t bytes;
    rope_plan *plan = plan_of(&bytes);
    uint16_t *in = make_inputs(device), *alone = malloc(2 * WRITTEN), *got = malloc(2 * WRITTEN);
    for (int i = 0; i < STREAMS; i++) {
        CHECK_STATUS(ROPE_OK, rope_device_alloc(device, 2 * WRITTEN, &lanes[i].gradients));
        CHECK_STATUS(ROPE_OK, rope_device_alloc(device, bytes, &lanes[i].workspace));
        CHECK_GPU(gpuStreamCreateWithFlags(&lanes[i].stream, gpuStreamNonBlocking));
    }
    differentiate(plan, in, &lanes[0], bytes);
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(device));
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device, alone, lanes[0].gradients, 2 * WRITTEN));
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < STREAMS; i++)
            differentiate(plan, in, &lanes[i], bytes);
        CHECK_STATUS(ROPE_OK, rope_device_synchronize(device));
        for (int i = 0; i < STREAMS; i++) {
            CHECK_STATUS(ROPE_OK,
                         rope_device_copy_out(device, got, lanes[i].gradients, 2 * WRITTEN));
            CHECK(memcmp(got, alone, 2 * WRITTEN) == 0, "stream %d has other bits in round %d", i,
                  round);
        }
    }
    for (int i = 0; i < STREAMS; i++) {
        CHECK_GPU(gpuStreamDestroy(lanes[i].stream));
        CHECK_STATUS(ROPE_OK, rope_device_free(device, lanes[i].workspace));
        CHECK_STATUS(ROPE_OK, rope_device_free(device, lanes[i].gradients));
    }
    CHECK_STATUS(ROPE_OK, rope_device_free(device, in));
    rope_plan_destroy(plan);
    free(alone);
    free(got);
}
