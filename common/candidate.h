/* The candidates of a backend. */
#ifndef ROPEKIT_COMMON_CANDIDATE_H
#define ROPEKIT_COMMON_CANDIDATE_H

#include <ropekit/backend.h>

#include <string.h>

/* The backend's index-th candidate for an operation, in order of preference; NULL past the last. */
static inline const rope_candidate *rope_candidate_of(const rope_backend *backend,
                                                      const char *operation, int32_t index) {
    for (int32_t l = 0; l < backend->list_count; l++) {
        const rope_candidate_list *list = backend->lists[l];
        for (int32_t i = 0; i < list->count; i++) {
            const rope_candidate *candidate =
                (const void *)((const char *)list->candidates + list->candidate_size * (size_t)i);
            if (strcmp(candidate->operation, operation) == 0 && index-- == 0)
                return candidate;
        }
    }
    return NULL;
}

/* Whether one of its candidates has the field kernel_of, which a plugin may be older than. */
static inline int rope_candidate_has_names(const rope_backend *backend,
                                           const rope_candidate *candidate) {
    for (int32_t l = 0; l < backend->list_count; l++) {
        const rope_candidate_list *list = backend->lists[l];
        const uintptr_t at = (uintptr_t)candidate - (uintptr_t)list->candidates;
        if (at < list->candidate_size * (size_t)list->count)
            return list->candidate_size >= sizeof(rope_candidate);
    }
    return 0;
}

#endif
