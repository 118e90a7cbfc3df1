/* Memory and objects that live until the command ends. */
#ifndef ROPEKIT_BENCH_POOL_H
#define ROPEKIT_BENCH_POOL_H

#include <stddef.h>

typedef struct pool_entry pool_entry;
typedef struct pool {
    pool_entry *last;
} pool;

/* Zeroed memory; NULL when there is none. */
void *pool_alloc(pool *p, size_t count, size_t size);
/* Releases an object with the pool; releases it now and returns NULL when there is no memory. */
void *pool_keep(pool *p, void *object, void (*release)(void *object));
/* Releases everything, last first. */
void pool_release(pool *p);

#endif
