/* Plugins: libropekit_NAME.so in ROPE_PLUGIN_PATH, then beside libropekit.so. */
#ifndef ROPEKIT_COMMON_LOADER_H
#define ROPEKIT_COMMON_LOADER_H

#include "common/registry.h"

/* Appends an entry for each plugin file of every directory to `count` entries, of which there is
 * space for `capacity`; a name found again is skipped. Opens none. Returns how many there are then,
 * or, appending none, a negative number where memory runs out. */
int32_t rope_loader_scan(rope_entry *entries, int32_t count, int32_t capacity);
/* Whether everything that a ROPE_PLUGIN_PATH names is a directory, by its absolute path. */
int rope_loader_path_is_valid(const char *path);
/* After the scan: its directories, as text. */
const char *rope_loader_directories(void);

/* Opens the plugin of an entry, whose origin is its path, once plugin_file.h finds nothing wrong
 * with the file, and sets its backend or its reason. */
void rope_loader_open(const rope_host *host, rope_entry *entry);

#endif
