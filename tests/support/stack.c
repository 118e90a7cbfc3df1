#define _GNU_SOURCE
#include "tests/support/stack.h"

#include "tests/support/harness.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CANARY = 256 * 1024, MARK = 0xa5 };

static size_t limit;

void stack_limit(size_t bytes) {
    limit = bytes;
}

size_t stack_limited(void) {
    return limit;
}

void stack_required(void) {
#if !defined(__OPTIMIZE__)
    SKIP("frames that are not optimised are larger");
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("frames of sanitizers are larger");
#endif
}

typedef struct job {
    void (*work)(void *state);
    void *state;
} job;

static void *run(void *opaque) {
    const job *j = opaque;
    j->work(j->state);
    return NULL;
}

void stack_run(size_t bytes, void (*work)(void *state), void *state) {
    const size_t least = (size_t)sysconf(_SC_THREAD_STACK_MIN),
                 page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes < least)
        bytes = least;
    const size_t all = CANARY + page + bytes;
    unsigned char *map =
        mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    job j = {work, state};
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(map != MAP_FAILED, "no memory for a stack");
    memset(map, MARK, CANARY);
    CHECK(mprotect(map + CANARY, page, PROT_NONE) == 0, "no page that faults");
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstack(&attributes, map + CANARY + page, bytes) == 0,
          "%zu bytes are no stack", bytes);
    CHECK(pthread_create(&thread, &attributes, run, &j) == 0, "no thread");
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    size_t changed = 0;
    for (size_t i = 0; i < CANARY; i++)
        changed += map[i] != MARK;
    munmap(map, all);
    CHECK(changed == 0, "%zu bytes below the stack were written", changed);
}
