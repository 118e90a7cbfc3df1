#include "common/ops/regions.h"

#include "common/ops/tensor.h"
#include "common/status.h"

void rope_regions_add(rope_regions *list, const char *name, int written, const rope_span *span) {
    const int n = list->count++;
    list->at[n].name = name;
    list->at[n].written = written;
    list->at[n].span = span;
}

void rope_regions_add_region(rope_regions *list, const rope_region *region) {
    if (region->name)
        rope_regions_add(list, region->name, region->written, &region->span);
}

rope_status rope_regions_add_workspace(rope_regions *list, const void *workspace, size_t bytes,
                                       rope_span *span) {
    const int64_t signed_bytes = bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes;
    rope_status status = workspace ? rope_pointer_check("", "workspace", workspace, 256) : ROPE_OK;
    if (status != ROPE_OK || !workspace || !bytes)
        return status;
    *span = (rope_span){.dims = 0, .element = signed_bytes};
    if (!rope_span_place_contiguous(span, workspace, signed_bytes))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "workspace_bytes is %zu; allowed is what stays within 64-bit addresses",
                         bytes);
    rope_regions_add(list, "workspace", 1, span);
    return ROPE_OK;
}

rope_status rope_regions_check(const rope_regions *list) {
    for (int i = 0; i < list->count; i++)
        for (int j = list->at[i].written ? 0 : list->count; j < list->count; j++)
            if (j != i && !rope_span_disjoint(list->at[i].span, list->at[j].span))
                return rope_fail(ROPE_ERROR_OVERLAP,
                                 "%s is %#llx and %s is %#llx: they overlap; allowed is disjoint "
                                 "views",
                                 list->at[j].name, (unsigned long long)list->at[j].span->low,
                                 list->at[i].name, (unsigned long long)list->at[i].span->low);
    return ROPE_OK;
}
