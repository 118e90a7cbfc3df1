/* Plugins: libropekit_NAME.so in ROPE_PLUGIN_PATH, then beside libropekit.so. */
#ifndef ROPEKIT_COMMON_LOADER_H
#define ROPEKIT_COMMON_LOADER_H

#include "common/registry.h"

/* Fills up to `room` entries from every directory; a name found again is skipped. Returns how many.
 */
int32_t rope_loader_scan(const rope_host *host, rope_entry *entries, int32_t room);
/* After the scan: its directories, as text. */
const char *rope_loader_directories(void);

#endif
