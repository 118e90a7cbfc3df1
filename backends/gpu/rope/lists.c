#include "backends/gpu/rope/lists.h"

#include <stdlib.h>
#include <string.h>

/* The host image of the lists; without `image` only sizes are added up. */
typedef struct packing {
    char *image, *device;
    size_t used;
} packing;

static void *pack(packing *packing, const void *list, size_t bytes) {
    if (!list)
        return NULL;
    size_t start = packing->used;
    packing->used += (bytes + 15) / 16 * 16;
    if (!packing->image)
        return NULL;
    memcpy(packing->image + start, list, bytes);
    return packing->device + start;
}

static void pack_all(packing *packing, const rope_problem *problem, rope_problem *copy) {
    size_t n = (size_t)problem->pairs;
    *copy = *problem;
    for (int s = 0; s < problem->frequency_sets; s++) {
        const rope_frequency_set *from = &problem->set[s];
        rope_frequency_set *to = &copy->set[s];
        to->turns = pack(packing, from->turns, n * sizeof *from->turns);
        to->turns_top = pack(packing, from->turns_top, n * sizeof *from->turns_top);
        to->turns_low = pack(packing, from->turns_low, n * sizeof *from->turns_low);
        to->inv_freq = pack(packing, from->inv_freq, n * sizeof *from->inv_freq);
        to->omega = NULL;
    }
    copy->pair_axis = pack(packing, problem->pair_axis, n * sizeof *problem->pair_axis);
    copy->xpos_rate = pack(packing, problem->xpos_rate, n * sizeof *problem->xpos_rate);
}

gpuError_t gpu_lists_copy(const rope_problem *problem, rope_problem *copy, void **memory) {
    packing packing = {0};
    pack_all(&packing, problem, copy);
    size_t bytes = packing.used ? packing.used : 1;
    packing.used = 0;
    packing.image = calloc(bytes, 1);
    if (!packing.image)
        return gpuErrorMemoryAllocation;
    void *device = NULL;
    gpuError_t error = gpuMalloc(&device, bytes);
    packing.device = device;
    if (error == gpuSuccess) {
        pack_all(&packing, problem, copy);
        error = gpuMemcpyAsync(device, packing.image, bytes, gpuMemcpyHostToDevice, NULL);
    }
    if (error == gpuSuccess)
        error = gpuStreamSynchronize(NULL);
    free(packing.image);
    if (error == gpuSuccess)
        *memory = device;
    else if (device)
        (void)gpuFree(device);
    return error;
}
