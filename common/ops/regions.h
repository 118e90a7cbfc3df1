/* What a call reads and writes, and that nothing written is read elsewhere. */
#ifndef ROPEKIT_COMMON_REGIONS_H
#define ROPEKIT_COMMON_REGIONS_H

#include "common/ops/view.h"

#include <ropekit/rope.h>

/* A view with its own counts. */
typedef struct rope_region {
    const char *name; /* NULL: absent */
    int written;
    int64_t count[ROPE_SPAN_DIMS];
    rope_span span;
} rope_region;

enum { ROPE_MOST_REGIONS = 24 };

typedef struct rope_regions {
    struct {
        const char *name;
        int written;
        const rope_span *span;
    } at[ROPE_MOST_REGIONS];
    int count; /* 0 at first */
} rope_regions;

void rope_regions_add(rope_regions *list, const char *name, int written, const rope_span *span);

/* Adds a region that is there. */
void rope_regions_add_region(rope_regions *list, const rope_region *region);

/* Checks a workspace, or NULL, and adds its bytes, which are written; span: lives as the list. */
rope_status rope_regions_add_workspace(rope_regions *list, const void *workspace, size_t bytes,
                                       rope_span *span);

/* Two of which one is written share no byte. */
rope_status rope_regions_check(const rope_regions *list);

#endif
