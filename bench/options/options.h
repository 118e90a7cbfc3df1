/* Command-line options: one table names every field of a descriptor, a call and a method. */
#ifndef ROPEKIT_BENCH_OPTIONS_H
#define ROPEKIT_BENCH_OPTIONS_H

#include "bench/options/option_fields.h"
#include "bench/support/pool.h"

#include <ropekit/attention.h>

#include <stdbool.h>
#include <stdio.h>

/* Commands an option belongs to. */
enum {
    COMMAND_INFO = 1,
    COMMAND_VERIFY = 2,
    COMMAND_ACCURACY = 4,
    COMMAND_BENCH = 8,
    COMMAND_DEMO = 16,
    COMMAND_TUNE = 32,
};

/* Exit statuses. */
enum { EXIT_OK = 0, EXIT_CHECK_FAILED = 1, EXIT_ENVIRONMENT = 2 };

/* The most threads that may be asked for: as many as the library uses. */
enum { OPTIONS_THREADS_MOST = 1024 };

enum { LAYOUT_BSHD = 1, LAYOUT_BHSD = 2, LAYOUT_SBHD = 3 };
enum { IDS_NONE = 1, IDS_SEQUENTIAL = 2, IDS_RANDOM = 3 };
enum { CACHE_WARM = 1, CACHE_COLD = 2 };
enum { PAGES_NHD = 1, PAGES_HND = 2 };

/* Index arrays of a call, converted to position_dtype when they reach the device. */
typedef struct index_list {
    int64_t *values;
    int64_t count;
} index_list;

/* Everything an option can set; 0 is "not given" unless stated. */
typedef struct options {
    int32_t command; /* COMMAND_ */
    pool *pool;      /* owns lists and the configuration behind desc */

    rope_desc desc;
    bool append, attention;      /* the operation of that name, else "rope" */
    bool backward;               /* attention: and its gradients */
    bool nondeterministic;       /* of kernels that may sum in any order too */
    bool v_in_k;                 /* attention: a cached key's first elements are its value */
    rope_append_desc appends;    /* descriptor of append, but for rope, which is desc */
    rope_attention_desc attends; /* of attention, but for that and what appends has too */
    int64_t keys;                /* of a sequence in a cache, with its queries'; 0: tokens */
    int32_t page_layout;         /* PAGES_ */
    int32_t latent;              /* append: elements of MLA's latent, by the config */
    int64_t batch;
    int64_t tokens, q_heads, k_heads, v_heads; /* -1: not given */
    int64_t position_offset;
    int64_t max_position; /* largest random id */
    int64_t table_rows;
    int32_t layout;
    int32_t position_ids; /* IDS_ */
    index_list positions; /* of every token, set by commands; rows of their own in tables */
    index_list cu_seqlens, sequence_offsets, sequence_lengths;

    const char **value;    /* as given, by index of option_fields; NULL: not given */
    bool dtype_is_assumed; /* neither the config nor an option states it */
    const char *config, *layer_type, *suite, *output;
    int64_t seed, rounds, threads;
    int32_t cache;     /* CACHE_ */
    bool allow_unread; /* fields about RoPE that nothing reads are but told */
    bool in_place, json, quick, help, list, resume;
} options;

/* Parses a command's arguments over the defaults, a --config file first; argv[0] is the command.
 * Returns false after a message on stderr. */
bool options_parse(options *o, int argc, char **argv);
/* Sets options from "--name=value --name ..."; settings are separated by single spaces. */
bool options_apply(options *o, const char *settings);
/* The options that were given, each once as "--name=value" with its value quoted for a shell, but
 * the backend, those about where results go and those that the settings `without` name. NULL: no
 * memory. */
const char *options_line(const options *o, const char *without);
/* The command line of a shell that repeats a case on the opened backend: options given and
 * settings. NULL where one of them is NULL, or no memory. */
const char *options_command(const options *o, const char *command, const char *given,
                            const char *settings);
/* A word that a shell reads as this text; lives as long as the pool. NULL: no memory. */
const char *options_quoted(pool *memory, const char *text);
/* A line that says what rotates, by which rule, in which pairs, where and which way; one more of
 * append, what becomes of q, k and v, and of attention, what sees which keys. */
void options_describe(const options *o, FILE *file);
/* The name of a choice, the first where none was made. */
enum { OPTIONS_CHOICE_BYTES = 24 };
void options_choice(const options *o, const option_field *field, char text[OPTIONS_CHOICE_BYTES]);
/* The name of the options' dtype, and whether the config left it open. */
const char *options_dtype(const options *o);
/* Prints the options that a command takes, in groups. */
void options_help(FILE *file, int32_t command);

#endif
