#include "bench/support/pool.h"

#include <stdlib.h>

struct pool_entry {
    pool_entry *next;
    void *object;
    void (*release)(void *object);
};

void *pool_keep(pool *p, void *object, void (*release)(void *object)) {
    if (!object)
        return NULL;
    pool_entry *entry = malloc(sizeof *entry);
    if (!entry) {
        release(object);
        return NULL;
    }
    *entry = (pool_entry){p->last, object, release};
    p->last = entry;
    return object;
}

void *pool_alloc(pool *p, size_t count, size_t size) {
    return pool_keep(p, calloc(count ? count : 1, size), free);
}

void pool_release(pool *p) {
    while (p->last) {
        pool_entry *entry = p->last;
        p->last = entry->next;
        entry->release(entry->object);
        free(entry);
    }
}
