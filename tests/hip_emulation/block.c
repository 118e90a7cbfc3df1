/* Runs a launch: a block at a time, each thread of it on a stack of its own where it must wait. */
#undef _FORTIFY_SOURCE /* its longjmp stays on one stack */
#include "tests/hip_emulation/kernel.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { STACK_BYTES = 128 << 10, GUARD_BYTES = 256, UNWRITTEN = 0xa5 };

enum state { FRESH, READY, AT_BARRIER, AT_EXCHANGE, AT_WARP, DONE };

typedef struct thread {
    enum state state;
    int fiber;
    int exchanges;
    uint64_t *lanes; /* values of its wave in the exchange it waits for */
} thread;

dim3 threadIdx, blockIdx, blockDim, gridDim;
_Alignas(16) _Thread_local uint64_t memory[(EMULATED_SHARED_MOST + GUARD_BYTES) / 8];

static const emulated_launch *launch;
static thread threads[EMULATED_BLOCK_THREADS];
static dim3 index_of[EMULATED_BLOCK_THREADS];
static int count, started, done, current, backwards;
/* Two exchanges are under way at most: none begins a third before all have read the first. */
static uint64_t values[2][EMULATED_BLOCK_THREADS];
static jmp_buf scheduler, fibers[EMULATED_BLOCK_THREADS];
static void *stacks[EMULATED_BLOCK_THREADS]; /* of fibers that were started */

int emulated_wave(void) {
    static int wave;
    if (!wave) {
        const char *given = getenv("HIP_EMULATION_WAVE");
        wave = !given || !*given || strcmp(given, "64") == 0 ? 64
               : strcmp(given, "32") == 0                    ? 32
                                                             : 0;
        if (!wave) {
            fprintf(stderr, "HIP_EMULATION_WAVE is \"%s\"; allowed: 32, 64\n", given);
            exit(2);
        }
    }
    return wave;
}

const void *emulated_arguments(void) {
    return launch->arguments;
}

static void enter_thread(int t) {
    current = t;
    threadIdx = index_of[t];
}

/* The thread of a turn, and the turn of a thread. */
static int turn_of(int t) {
    return backwards ? count - 1 - t : t;
}

/* swapcontext would ask the kernel for the signal mask each time. */
static void switch_to(jmp_buf from, jmp_buf to) {
    if (setjmp(from) == 0)
        longjmp(to, 1);
}

/* Enters the first thread from a turn on that is ready and gives where it waits, or the scheduler
 * where there is none. */
static jmp_buf *next_ready(int turn) {
    for (; turn < count; turn++) {
        int t = turn_of(turn);
        if (threads[t].state == READY) {
            enter_thread(t);
            return &fibers[threads[t].fiber];
        }
    }
    return &scheduler;
}

/* None is ready while some have not started. */
static jmp_buf *next_after(int t) {
    return next_ready(started < count ? count : turn_of(t) + 1);
}

/* A fiber runs threads until one must wait, in every block anew: after a failure, which leaves some
 * in the middle, nothing runs any more. */
static void fiber_main(int fiber) {
    for (;;) {
        while (started < count) {
            int t = turn_of(started);
            started++;
            threads[t].fiber = fiber;
            enter_thread(t);
            launch->kernel->run(launch->arguments);
            threads[current].state = DONE;
            done++;
        }
        switch_to(fibers[fiber], *next_after(current));
    }
}

static int start_fiber(int fiber) {
    ucontext_t context;
    if (stacks[fiber]) {
        switch_to(scheduler, fibers[fiber]);
        return 1;
    }
    if (getcontext(&context) || !(stacks[fiber] = malloc(STACK_BYTES)))
        return 0;
    context.uc_stack.ss_sp = stacks[fiber];
    /* Stacks that all began at one place of a page would share few sets of the cache. */
    context.uc_stack.ss_size = STACK_BYTES - (size_t)fiber % 64 * 576;
    context.uc_link = NULL;
    makecontext(&context, (void (*)(void))fiber_main, 1, fiber);
    if (setjmp(scheduler) == 0)
        setcontext(&context);
    return 1;
}

static void wait_in(enum state state) {
    int fiber = threads[current].fiber;
    threads[current].state = state;
    switch_to(fibers[fiber], *next_after(current));
}

void emulated_block_barrier(void) {
    wait_in(AT_BARRIER);
}

void emulated_warp_barrier(void) {
    wait_in(AT_WARP);
}

const uint64_t *emulated_wave_exchange(uint64_t value) {
    int first = current / emulated_wave() * emulated_wave();
    uint64_t *lanes = values[threads[current].exchanges++ % 2];
    lanes[current] = value;
    wait_in(AT_EXCHANGE);
    return lanes + first;
}

/* Makes the threads of a range ready if all that have not ended wait in `state`. */
static int release(int first, int last, enum state state) {
    int waiting = 0;
    for (int t = first; t < last; t++) {
        if (threads[t].state != state && threads[t].state != DONE)
            return 0;
        waiting += threads[t].state == state;
    }
    for (int t = first; t < last; t++)
        if (threads[t].state == state)
            threads[t].state = READY;
    return waiting > 0;
}

static int release_any(void) {
    int any = 0, wave = emulated_wave();
    for (int t = 0; t < count; t += wave)
        any |= release(t, t + wave < count ? t + wave : count, AT_EXCHANGE);
    for (int t = 0; t < count; t += 32)
        any |= release(t, t + 32 < count ? t + 32 : count, AT_WARP);
    return any || (done == 0 && release(0, count, AT_BARRIER));
}

static hipError_t run_block(void) {
    unsigned char *shared = (unsigned char *)memory;
    memset(shared, UNWRITTEN, launch->shared_bytes + GUARD_BYTES);
    memset(threads, 0, (size_t)count * sizeof *threads);
    started = done = 0;
    for (int fiber = 0; started < count; fiber++)
        if (!start_fiber(fiber))
            return hipErrorOutOfMemory;
    while (done < count && release_any())
        switch_to(scheduler, *next_ready(0));
    for (int i = 0; i < GUARD_BYTES; i++)
        if (shared[launch->shared_bytes + (size_t)i] != UNWRITTEN)
            return hipErrorLaunchFailure;
    return done == count ? hipSuccess : hipErrorLaunchFailure;
}

/* HIP promises no order of blocks and threads, so every other block runs its threads backwards. */
hipError_t emulated_run(const emulated_launch *given) {
    launch = given;
    gridDim = launch->grid;
    blockDim = launch->block;
    count = 0;
    for (uint32_t z = 0; z < blockDim.z; z++)
        for (uint32_t y = 0; y < blockDim.y; y++)
            for (uint32_t x = 0; x < blockDim.x; x++)
                index_of[count++] = (dim3){x, y, z};
    hipError_t error = hipSuccess;
    for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
            for (blockIdx.x = 0; blockIdx.x < gridDim.x && error == hipSuccess; blockIdx.x++) {
                backwards = (blockIdx.x + blockIdx.y + 1) % 2;
                error = run_block();
            }
    return error;
}
