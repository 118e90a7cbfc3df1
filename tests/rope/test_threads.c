/* One plan used from many threads at once, beside threads that make and destroy plans and ask for
 * frequencies. Meant for ThreadSanitizer as well. */
#include "tests/rope/cases.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 8, ROUNDS = 40, TOKENS = 33, HEADS = 3 };

/* What a thread is given, and what it found: CHECK belongs to the test's own thread. */
typedef struct worker {
    pthread_t thread;
    const rope_plan *plan;
    const test_case *c;
    const unsigned char *expected;
    rope_desc desc;
    rope_status status;
    int differs;
    char error[256];
} worker;

static void keep_status(worker *w, rope_status status) {
    if (status == ROPE_OK || w->status != ROPE_OK)
        return;
    w->status = status;
    strncpy(w->error, rope_last_error(), sizeof w->error - 1);
}

static void run_shared(worker *w, unsigned char *result) {
    rope_device *device = device_open();
    void *memory = NULL;
    rope_args args = w->c->args;
    keep_status(w, rope_device_alloc(device, w->c->bytes, &memory));
    if (!memory)
        return;
    keep_status(w, rope_device_copy_in(device, memory, w->c->arena, w->c->bytes));
    case_relocate(&args, w->c->arena, memory);
    keep_status(w, rope_apply(w->plan, &args));
    keep_status(w, rope_device_copy_out(device, result, memory, w->c->bytes));
    keep_status(w, rope_device_free(device, memory));
    w->differs |= memcmp(result, w->expected, w->c->bytes) != 0;
}

static void run_own(worker *w) {
    rope_plan *plan = NULL;
    double inv_freq[CASE_MAX_PAIRS];
    keep_status(w, rope_plan_create(&w->desc, &plan));
    rope_plan_destroy(plan);
    keep_status(w, rope_frequencies(&w->desc, 0, inv_freq, CASE_MAX_PAIRS, NULL));
    rope_desc bad = w->desc;
    bad.head_dim = -1;
    if (rope_plan_create(&bad, &plan) != ROPE_ERROR_INVALID_VALUE ||
        !strstr(rope_last_error(), "head_dim is -1"))
        w->differs = 1;
}

static void *work(void *opaque) {
    worker *w = opaque;
    unsigned char *result = malloc(w->c->bytes);
    for (int i = 0; i < ROUNDS; i++) {
        run_shared(w, result);
        run_own(w);
    }
    free(result);
    return NULL;
}

TEST(threads, one_plan_many_threads) {
    static worker workers[THREADS];
    case_block block = {ROPE_ANGLE_EXACT, ROPE_BF16, 36, TOKENS, HEADS};
    test_case c;
    rope_plan *plan = NULL;
    case_make_block(&c, test_seed(), 1, &block);
    rope_desc desc = c.desc;
    device_choose(&desc);
    device_open();
    unsigned char *expected = malloc(c.bytes);
    CHECK_STATUS(ROPE_OK, device_run(&c, &c.desc, &c.args, 1, NULL, expected));
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    for (int i = 0; i < THREADS; i++) {
        workers[i] = (worker){.plan = plan, .c = &c, .expected = expected, .desc = desc};
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0, "no thread %d", i);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < THREADS; i++) {
        CHECK(workers[i].status == ROPE_OK, "thread %d: %s", i, workers[i].error);
        CHECK(!workers[i].differs, "thread %d has other results than the first call", i);
    }
    rope_plan_destroy(plan);
    free(expected);
    case_free(&c);
}
