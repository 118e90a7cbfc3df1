/* What the system takes to give new memory. */
#ifndef ROPEKIT_PYTHON_PAGES_H
#define ROPEKIT_PYTHON_PAGES_H

#include <stdint.h>

/* Of less it is not asked. */
enum { PAGES_LEAST_BYTES = 4 << 20 };

/* Asks for huge pages where the end of some memory is yet to come, and writes a byte of it. Returns
 * 1 where it comes in small pages all the same: the system clears each in the cache, so that stores
 * past the cache first push it out, and a copy rotated in place takes less time. */
int pages_are_new_and_small(void *memory, int64_t bytes);

#endif
