/* Hugging Face configurations by path or by the name of a shipped one. */
#ifndef ROPEKIT_BENCH_CONFIG_FILE_H
#define ROPEKIT_BENCH_CONFIG_FILE_H

#include "bench/options/options.h"

/* Reads a configuration; NULL after a message. */
rope_config *config_file_read(const char *name, const char *layer_type);
/* Fills in what the options' configuration states; false after a message. */
bool config_read(options *o);
/* Prints "--option=NAME" for every shipped configuration. */
void config_file_list(FILE *file, const char *option);

#endif
