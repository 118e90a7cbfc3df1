#include "python/csrc/pages.h"

#include <sys/mman.h>
#include <unistd.h>

enum { HUGE_PAGE = PAGES_LEAST_BYTES / 2 };

/* -1 where the system does not tell. */
static int is_there(char *page, size_t size) {
    unsigned char there;
    return mincore(page, size, &there) ? -1 : there & 1;
}

int pages_are_new_and_small(void *memory, int64_t bytes) {
    uintptr_t first = ((uintptr_t)memory + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
    uintptr_t end = ((uintptr_t)memory + (uintptr_t)bytes) & ~(uintptr_t)(HUGE_PAGE - 1);
    size_t size = (size_t)sysconf(_SC_PAGESIZE);
    char *block = (char *)(end - HUGE_PAGE), *last = (char *)(end - size);
    if (is_there(last, size) != 0)
        return 0;
    madvise((void *)first, end - first, MADV_HUGEPAGE);
    *block = 0;
    return is_there(last, size) == 0;
}
