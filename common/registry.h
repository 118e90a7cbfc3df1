/* The backends of this process: those built in, then plugins, each opened once and only when asked
 * for. */
#ifndef ROPEKIT_COMMON_REGISTRY_H
#define ROPEKIT_COMMON_REGISTRY_H

#include <ropekit/backend.h>

/* A backend, once it was opened, or the reason why there is none. */
typedef struct rope_entry {
    const char *name;
    const char *origin;          /* path of a plugin, or "built in" */
    int opened;                  /* guarded by the registry */
    const rope_backend *backend; /* NULL: not opened, or could not be */
    char reason[256];
} rope_entry;

enum { ROPE_MAX_BACKENDS = 16 };

/* The index-th backend that was opened so far, first those that are no plugins; NULL past the last.
 */
const rope_backend *rope_registry_opened(int32_t index);

/* Entries in the order of "auto", every one of them opened. */
int32_t rope_registry_count(void);
const rope_entry *rope_registry_entry(int32_t index);

/* The entry of a name, opened; NULL where none has it. */
const rope_entry *rope_registry_find(const char *name, size_t length);

/*
 * The backend that a name, a comma list or "auto" stands for; NULL asks ROPE_BACKEND. The first of
 * the list with a device wins, and what stands behind it is not opened; when none has one, the
 * error says why for each.
 */
rope_status rope_registry_choose(const char *names, int32_t device, const rope_backend **backend);

#endif
