/* A Hugging Face config.json, walked into a rope_config. */
#ifndef ROPEKIT_BENCH_CONFIG_FILE_H
#define ROPEKIT_BENCH_CONFIG_FILE_H

#include <ropekit/rope.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Largest config.json that is read. */
#define CONFIG_FILE_MOST ((size_t)1 << 20)
#define CONFIG_ERROR_SIZE 256

/*
 * Feeds the fields of a config.json, those of text_config after the rest, to a configuration.
 * layer_type chooses among the layer types of a config that has several; NULL takes
 * full_attention. Returns ROPE_OK, or a status with its text in error (CONFIG_ERROR_SIZE bytes).
 */
rope_status config_file_parse(const char *text, size_t length, rope_config *config,
                              const char *layer_type, char *error);

/* Prints the names of the shipped configs as "--option=NAME", one a line. */
void config_file_list(FILE *file, const char *option);
/* Reads and parses a file; a name without '/' and ".json" is one of the shipped configs. Returns
 * false after a message on stderr. */
bool config_file_read(const char *name, rope_config *config, const char *layer_type);

#endif
