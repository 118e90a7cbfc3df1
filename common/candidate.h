/* The candidates of a backend. */
#ifndef ROPEKIT_COMMON_CANDIDATE_H
#define ROPEKIT_COMMON_CANDIDATE_H

#include <ropekit/backend.h>

#include <stddef.h>
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

/* Bytes of one of its candidates, of which a plugin may know less; all of one that is not its own.
 */
static inline size_t rope_candidate_size(const rope_backend *backend,
                                         const rope_candidate *candidate) {
    for (int32_t l = 0; l < backend->list_count; l++) {
        const rope_candidate_list *list = backend->lists[l];
        const uintptr_t at = (uintptr_t)candidate - (uintptr_t)list->candidates;
        if (at < list->candidate_size * (size_t)list->count)
            return list->candidate_size;
    }
    return sizeof(rope_candidate);
}

/* A function of a candidate, or NULL where the candidate ends before it. */
#define ROPE_CANDIDATE_FUNCTION(backend, candidate, field)                                         \
    (rope_candidate_size(backend, candidate) >=                                                    \
             offsetof(rope_candidate, field) + sizeof((candidate)->field)                          \
         ? (candidate)->field                                                                      \
         : NULL)

#endif
