/* A call belongs to its stream: it waits for nothing, in a capture too, and streams are apart. */
#include "tests/gpu/fixture.h"

#include <pthread.h>
#include <stdatomic.h>

static void wait_for_release(void *flag) {
    while (!atomic_load((atomic_int *)flag))
        ;
}

/* The stream stands still until rope_apply has come back. */
TEST(streams, apply_waits_for_nothing) {
    static fixture f;
    fixture_open(&f, 0, FIXTURE_PLAIN);
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_OK, rope_plan_create(&f.desc, &plan));
    gpuStream_t stream;
    CHECK_GPU(gpuStreamCreateWithFlags(&stream, gpuStreamNonBlocking));
    atomic_int released = 0;
    CHECK_GPU(gpuLaunchHostFunc(stream, wait_for_release, &released));
    rope_args args = fixture_args(&f, stream);
    rope_status status = rope_apply(plan, &args);
    atomic_store(&released, 1);
    CHECK_STATUS(ROPE_OK, status);
    fixture_check(&f, stream, "behind a stream that stood still");
    CHECK_GPU(gpuStreamDestroy(stream));
    rope_plan_destroy(plan);
    fixture_close(&f);
}

/* A plan's first call may be the one that is captured; replays read the ids that are there then. */
static void replay_with_other_ids(int kind, int32_t launch) {
    static fixture f;
    fixture_open(&f, 0, kind);
    f.desc.launch = launch;
    rope_plan *plan = NULL;
    CHECK_STATUS(ROPE_OK, rope_plan_create(&f.desc, &plan));
    gpuStream_t stream;
    CHECK_GPU(gpuStreamCreateWithFlags(&stream, gpuStreamNonBlocking));
    rope_args args = fixture_args(&f, stream);
    fixture_capture(stream);
    const rope_status status = rope_apply(plan, &args);
    gpuGraphExec_t exec = fixture_captured(stream, status);
    for (int round = 1; round <= 5; round++) {
        fixture_round(&f, round);
        fixture_send_ids(&f, stream);
        CHECK_GPU(gpuGraphLaunch(exec, stream));
        fixture_check(&f, stream, rope_plan_kernel(plan));
    }
    CHECK_GPU(gpuGraphExecDestroy(exec));
    CHECK_GPU(gpuStreamDestroy(stream));
    rope_plan_destroy(plan);
    fixture_close(&f);
}

TEST(streams, graphs_replay_with_other_ids) {
    for (int kind = 0; kind < FIXTURE_KINDS; kind++) {
        replay_with_other_ids(kind, ROPE_LAUNCH_SERIAL);
        replay_with_other_ids(kind, ROPE_LAUNCH_PROGRAMMATIC);
    }
}

enum { THREADS = 8, ROUNDS = 50 };

typedef struct worker {
    pthread_t thread;
    fixture f;
    const rope_plan *plan;
    gpuStream_t stream;
    rope_status status;
} worker;

static void *work(void *opaque) {
    worker *w = opaque;
    rope_args args = fixture_args(&w->f, w->stream);
    for (int i = 0; i < ROUNDS && w->status == ROPE_OK; i++)
        w->status = rope_apply(w->plan, &args);
    return NULL;
}

TEST(streams, threads_share_a_plan) {
    static worker workers[THREADS];
    rope_plan *plan = NULL;
    for (int i = 0; i < THREADS; i++)
        fixture_open(&workers[i].f, 0, FIXTURE_PLAIN);
    CHECK_STATUS(ROPE_OK, rope_plan_create(&workers[0].f.desc, &plan));
    for (int i = 0; i < THREADS; i++) {
        workers[i].plan = plan;
        CHECK_GPU(gpuStreamCreateWithFlags(&workers[i].stream, gpuStreamNonBlocking));
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "no thread");
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < THREADS; i++) {
        CHECK_STATUS(ROPE_OK, workers[i].status);
        fixture_check(&workers[i].f, workers[i].stream, "one plan, many threads");
        CHECK_GPU(gpuStreamDestroy(workers[i].stream));
        fixture_close(&workers[i].f);
    }
    rope_plan_destroy(plan);
}
