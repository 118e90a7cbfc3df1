#include "tests/support/case.h"

#include <string.h>

void case_pointers(rope_args *args, const void **list[CASE_POINTERS]) {
    const void **pointers[CASE_POINTERS] = {&args->q.in,
                                            (const void **)&args->q.out,
                                            &args->k.in,
                                            (const void **)&args->k.out,
                                            &args->position_ids,
                                            &args->sequence_offsets,
                                            &args->cu_seqlens,
                                            &args->sequence_lengths,
                                            &args->cos,
                                            &args->sin,
                                            (const void **)&args->position_flag};
    memcpy(list, pointers, sizeof pointers);
}

void case_move_pointers(const void **const *list, int32_t count, const void *from, const void *to) {
    for (int32_t i = 0; i < count; i++)
        if (*list[i])
            *list[i] = (const void *)((uintptr_t)to + ((uintptr_t)*list[i] - (uintptr_t)from));
}

void case_relocate(rope_args *args, const void *from, const void *to) {
    const void **list[CASE_POINTERS];
    case_pointers(args, list);
    case_move_pointers(list, CASE_POINTERS, from, to);
}
