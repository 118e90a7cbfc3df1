/* A look at a plugin's file before the dynamic linker maps it. */
#ifndef ROPEKIT_COMMON_PLUGIN_FILE_H
#define ROPEKIT_COMMON_PLUGIN_FILE_H

/*
 * What keeps a file from being handed to the dynamic linker, which would wait for it or end the
 * process, or NULL. It must be a regular file and a shared object of this machine, and what its
 * headers name must lie within it. What lies within, code and data, is not read. Blocks on nothing;
 * valid until the thread's next call.
 */
const char *rope_plugin_file_wrong(const char *path);

#endif
