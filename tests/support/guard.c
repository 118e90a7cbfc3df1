#define _GNU_SOURCE
#include "tests/support/guard.h"

#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

guard_side guard_last(void) {
    return device_runs_on_cpu() ? GUARD_BEFORE : GUARD_AFTER;
}

/* Vectors begin where they do in the arena, at multiples of as many bytes. */
enum { VECTOR = 16 };

static int device_block_make(guard_block *block, const case_piece *piece) {
    const size_t skip = piece->offset % VECTOR, bytes = skip + piece->bytes;
    if (rope_device_alloc(device_open(), bytes ? bytes : 1, &block->map) != ROPE_OK)
        return 0;
    block->at = (unsigned char *)block->map + skip;
    return 1;
}

/* A size that is no multiple of the alignment leaves a few bytes before the page behind it. */
static int block_make(guard_block *block, size_t bytes, size_t alignment, guard_side side) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inside = (bytes + page - 1) / page * page;
    block->map_bytes = inside + 2 * page;
    block->map = mmap(NULL, block->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block->map == MAP_FAILED) {
        block->map = NULL;
        return 0;
    }
    unsigned char *first = (unsigned char *)block->map + page;
    size_t skip = side == GUARD_AFTER ? (inside - bytes) / alignment * alignment : 0;
    block->at = first + skip;
    return inside == 0 || mprotect(first, inside, PROT_READ | PROT_WRITE) == 0;
}

static void move_pointer(const guard_case *g, const test_case *c, const void **pointer) {
    size_t at = (size_t)((const unsigned char *)*pointer - c->arena);
    for (int32_t i = 0; i < c->pieces; i++)
        if (at >= c->piece[i].offset && at <= c->piece[i].offset + c->piece[i].bytes)
            *pointer = g->block[i].at + (at - c->piece[i].offset);
}

int guard_make(guard_case *g, const test_case *c, guard_side side) {
    memset(g, 0, sizeof *g);
    for (int32_t i = 0; i < c->pieces; i++) {
        const case_piece *piece = &c->piece[i];
        guard_block *block = &g->block[i];
        if (!(device_runs_on_cpu() ? block_make(block, piece->bytes, piece->alignment, side)
                                   : device_block_make(block, piece))) {
            guard_free(g, c);
            return 0;
        }
        if (block->map_bytes)
            memcpy(block->at, c->arena + piece->offset, piece->bytes);
        else
            CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), block->at,
                                                      c->arena + piece->offset, piece->bytes));
    }
    return 1;
}

void guard_move(const guard_case *g, const test_case *c, const void **const *list, int32_t count) {
    for (int32_t i = 0; i < count; i++)
        if (*list[i])
            move_pointer(g, c, list[i]);
}

void guard_free(guard_case *g, const test_case *c) {
    for (int32_t i = 0; i < c->pieces; i++) {
        guard_block *block = &g->block[i];
        if (block->map && block->map_bytes)
            munmap(block->map, block->map_bytes);
        else if (block->map)
            CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), block->map));
    }
}

void guard_read(const guard_case *g, const test_case *c, int32_t piece, unsigned char *to) {
    const guard_block *block = &g->block[piece];
    if (block->map_bytes)
        memcpy(to, block->at, c->piece[piece].bytes);
    else
        CHECK_STATUS(ROPE_OK,
                     rope_device_copy_out(device_open(), to, block->at, c->piece[piece].bytes));
}

int guard_workspace_make(guard_workspace *w, size_t bytes, guard_side side) {
    memset(&w->c, 0, sizeof w->c);
    w->c.pieces = 1;
    w->c.piece[0] = (case_piece){0, bytes, 256};
    w->c.arena = malloc(bytes + 1);
    memset(w->c.arena, 0xff, bytes);
    return guard_make(&w->g, &w->c, side);
}

void guard_workspace_free(guard_workspace *w) {
    guard_free(&w->g, &w->c);
    free(w->c.arena);
}

#ifndef ROPE_TEST_PLAIN
static const char *fault_text = "";

static void on_fault(int number) {
    if (write(STDERR_FILENO, fault_text, strlen(fault_text)) < 0)
        _exit(2);
    signal(number, SIG_DFL);
    raise(number);
}
#endif

void guard_name_fault(void) {
#ifndef ROPE_TEST_PLAIN
    fault_text = test_failure("no fault", "memory outside a buffer was touched");
    signal(SIGSEGV, on_fault);
    signal(SIGBUS, on_fault);
#endif
}

void guard_check(const guard_case *g, const test_case *c, const unsigned char *expected) {
    unsigned char *got = malloc(c->bytes);
    for (int32_t i = 0; i < c->pieces; i++) {
        guard_read(g, c, i, got);
        CHECK(memcmp(got, expected + c->piece[i].offset, c->piece[i].bytes) == 0,
              "piece %d differs from that of the same call elsewhere", i);
    }
    free(got);
}
