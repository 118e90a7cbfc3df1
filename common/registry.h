/* The backends of this process: those built in, then plugins, each loaded once. */
#ifndef ROPEKIT_COMMON_REGISTRY_H
#define ROPEKIT_COMMON_REGISTRY_H

#include <ropekit/backend.h>

/* A backend, or the reason why there is none. */
typedef struct rope_entry {
    const rope_backend *backend; /* NULL: could not be loaded */
    const char *name;
    const char *origin;
    char reason[256];
} rope_entry;

enum { ROPE_MAX_BACKENDS = 16 };

/* Entries in the order of "auto". */
int32_t rope_registry_count(void);
const rope_entry *rope_registry_entry(int32_t index);

/*
 * The backend that a name, a comma list or "auto" stands for; NULL asks ROPE_BACKEND. The first of
 * the list with a device wins; when none has, the error says why for each.
 */
rope_status rope_registry_choose(const char *names, int32_t device, const rope_backend **backend);

#endif
