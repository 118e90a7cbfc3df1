/*
 * out_of_memory FILE: makes plans of every operation, by a tuning file where there is one, while
 * each of their allocations in turn fails. Such a plan is made as if none had failed, or is
 * ROPE_ERROR_OUT_OF_MEMORY and keeps no memory.
 */
#define _GNU_SOURCE
#include <ropekit/attention.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static rope_status (*const makers[])(rope_plan **) = {
    make_rope, make_append, make_append_backward, make_attention, make_attention_backward,
    make_merge};
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

int main(int argc, char **argv) {
    int failed = 0;
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
