/* Files of Hugging Face configurations. */
#ifndef ROPEKIT_BENCH_CONFIG_FILE_H
#define ROPEKIT_BENCH_CONFIG_FILE_H

#include <ropekit/rope.h>

#include <stdbool.h>
#include <stdio.h>

/* Prints the names of the shipped configs as "--option=NAME", one a line. */
void config_file_list(FILE *file, const char *option);
/* Reads a config.json of at most 1 MiB, by its path or as one of the shipped configs: a name
 * without
 * '/' and ".json". Returns what rope_config_parse made of it, or NULL after a message. */
rope_config *config_file_read(const char *name, const char *layer_type);

#endif
