/*
 * out_of_memory FILE: makes plans of every operation, by a tuning file where there is one, while
 * each of their allocations in turn fails. Such a plan is made as if none had failed, or is
 * ROPE_ERROR_OUT_OF_MEMORY and keeps no memory. The first plan of a process looks for plugins: it
 * knows of each, or is ROPE_ERROR_OUT_OF_MEMORY and the next one does.
 */
#define _GNU_SOURCE
#include <ropekit/decode.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static long left, made, kept; /* allocations until one fails, of all, and those not freed */
static int counts;

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *pointer);

static int fails(void) {
    made += counts;
    if (!counts || left-- != 0)
        return 0;
    errno = ENOMEM;
    return 1;
}

static void *keep(void *pointer) {
    kept += counts && pointer;
    return pointer;
}

void *malloc(size_t size) {
    return fails() ? NULL : keep(__libc_malloc(size));
}

void *calloc(size_t count, size_t size) {
    return fails() ? NULL : keep(__libc_calloc(count, size));
}

void *aligned_alloc(size_t alignment, size_t size) {
    return fails() ? NULL : keep(__libc_memalign(alignment, size));
}

void free(void *pointer) {
    kept -= counts && pointer;
    __libc_free(pointer);
}

static const char *file;

static rope_desc rope(void) {
    rope_desc desc = ROPE_DESC_INIT;
    desc.dtype = ROPE_BF16;
    desc.head_dim = 64;
    return desc;
}

static rope_status make_rope(rope_plan **plan) {
    const rope_desc desc = rope();
    return rope_plan_create(&desc, plan);
}

static rope_append_desc append(void) {
    rope_append_desc desc = ROPE_APPEND_DESC_INIT;
    desc.rope = rope();
    return desc;
}

static rope_status make_append(rope_plan **plan) {
    const rope_append_desc desc = append();
    return rope_append_plan_create(&desc, plan);
}

static rope_status make_append_backward(rope_plan **plan) {
    const rope_append_desc desc = append();
    return rope_append_backward_plan_create(&desc, plan);
}

static rope_attention_desc attention(void) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    desc.rope = rope();
    desc.tuning = file;
    return desc;
}

static rope_status make_attention(rope_plan **plan) {
    const rope_attention_desc desc = attention();
    return rope_attention_plan_create(&desc, plan);
}

static rope_status make_attention_backward(rope_plan **plan) {
    const rope_attention_desc desc = attention();
    return rope_attention_backward_plan_create(&desc, plan);
}

static rope_status make_merge(rope_plan **plan) {
    const rope_attention_merge_desc desc = {
        .struct_size = sizeof desc, .dtype = ROPE_BF16, .head_dim = 64};
    return rope_attention_merge_plan_create(&desc, plan);
}

static rope_status make_decode(rope_plan **plan) {
    rope_decode_desc desc = ROPE_DECODE_DESC_INIT;
    desc.append = append();
    desc.append.cache = ROPE_CACHE_TABLE;
    desc.append.page_size = 4;
    desc.tuning = file;
    return rope_decode_plan_create(&desc, plan);
}

static rope_status (*const makers[])(rope_plan **) = {
    make_rope,  make_append, make_append_backward, make_attention, make_attention_backward,
    make_merge, make_decode};
enum { MAKERS = sizeof makers / sizeof makers[0] };

/* nth: allocation that fails; -1: none. */
static rope_status make(int maker, long nth, char *report, size_t size) {
    rope_plan *plan = NULL;
    made = kept = 0;
    left = nth;
    counts = 1;
    const rope_status status = makers[maker](&plan);
    if (status == ROPE_OK)
        snprintf(report, size, "%s\n%s", rope_plan_kernel(plan), rope_plan_report(plan));
    rope_plan_destroy(plan);
    counts = 0;
    return status;
}

/* In a process that has made no plan: what a nth allocation that fails leaves of the backends. The
 * exit status is 0, 1 for a backend that is lost, or 2 where fewer allocations are made. */
static int first(long nth, int backends) {
    char report[2048] = "";
    const rope_status status = make(0, nth, report, sizeof report);
    const int known = rope_backend_count() == backends;
    if (known && (status == ROPE_OK || (status == ROPE_ERROR_OUT_OF_MEMORY &&
                                        make(0, -1, report, sizeof report) == ROPE_OK)))
        return left >= 0 ? 2 : 0;
    fprintf(stderr, "first plan, allocation %ld: %s, %d backends of %d\n", nth,
            rope_status_string(status), (int)rope_backend_count(), backends);
    return 1;
}

static int in_child(long nth, int backends) {
    int status = -1;
    const pid_t child = fork();
    if (child == 0)
        _exit(nth < 0 ? rope_backend_count() : first(nth, backends));
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status)
               ? WEXITSTATUS(status)
               : 1;
}

static int check_first(void) {
    const int backends = in_child(-1, 0);
    int failed = backends < 2, status = 0;
    for (long nth = 0; nth < 1000 && status != 2; nth++) {
        status = in_child(nth, backends);
        failed |= status == 1;
    }
    return failed || status != 2;
}

int main(int argc, char **argv) {
    int failed = check_first();
    file = argc > 1 ? argv[1] : NULL;
    for (int maker = 0; maker < MAKERS; maker++) {
        char whole[2048] = "", report[2048];
        rope_status status = make(maker, -1, whole, sizeof whole); /* what is found once */
        status = make(maker, -1, whole, sizeof whole);
        const long all = made;
        for (long nth = 0; nth < all && status == ROPE_OK && !kept; nth++) {
            status = make(maker, nth, report, sizeof report);
            if (kept || (status != ROPE_ERROR_OUT_OF_MEMORY &&
                         (status != ROPE_OK || strcmp(report, whole) != 0))) {
                failed = 1;
                fprintf(stderr, "operation %d, allocation %ld of %ld: %s, %ld blocks kept: %s\n",
                        maker, nth, all, rope_status_string(status), kept,
                        status == ROPE_OK ? report : rope_last_error());
                kept = 0;
            }
            status = ROPE_OK;
        }
        if (status != ROPE_OK || kept || all == 0) {
            fprintf(stderr, "operation %d: %s, %ld blocks kept\n", maker, rope_last_error(), kept);
            failed = 1;
        }
        printf("operation %d: %ld allocations\n%s\n", maker, all, whole);
    }
    return failed;
}
