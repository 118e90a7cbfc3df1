/* What a user asks for: a case, which is a call of an operation, and how a command treats it. One
 * table names every field (option_fields.c). */
#ifndef ROPEKIT_BENCH_OPTIONS_H
#define ROPEKIT_BENCH_OPTIONS_H

#include "bench/options/option_fields.h"
#include "bench/support/pool.h"

#include <ropekit/decode.h>

#include <stdbool.h>
#include <stdio.h>

/* Commands an option belongs to. */
enum {
    COMMAND_INFO = 1,
    COMMAND_VERIFY = 2,
    COMMAND_BENCH = 4,
    COMMAND_DEMO = 8,
    COMMAND_TUNE = 16,
};

/* Exit statuses. */
enum { EXIT_OK = 0, EXIT_CHECK_FAILED = 1, EXIT_ENVIRONMENT = 2 };

/* The most threads that may be asked for, as many as the library uses, and the most rounds. */
enum { OPTIONS_THREADS_MOST = 1024, OPTIONS_ROUNDS_MOST = 1000 };

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

    /* the case */
    rope_desc desc;
    bool append, attention;      /* the operation of that name, else "rope" */
    bool backward;               /* attention: and its gradients */
    bool decode;                 /* attention: behind an append of the tokens, in one call */
    bool nondeterministic;       /* of kernels that may sum in any order too */
    bool v_in_k;                 /* attention: a cached key's first elements are its value */
    bool in_place;               /* outputs replace inputs */
    rope_append_desc appends;    /* descriptor of append, but for rope, which is desc */
    rope_attention_desc attends; /* of attention, but for that and what appends has too */
    int64_t keys;                /* of a sequence in a cache, with its queries'; 0: tokens */
    int64_t batch;
    int64_t tokens, q_heads, k_heads, v_heads; /* -1: not given */
    int64_t position_offset;
    int64_t max_position; /* largest random id */
    int64_t table_rows;
    int32_t layout;
    int32_t page_layout;  /* PAGES_ */
    int32_t position_ids; /* IDS_ */
    int32_t cache;        /* CACHE_ */
    index_list cu_seqlens, sequence_offsets, sequence_lengths;
    const char *suite_of, *label; /* of a suite's case, else NULL */

    /* how it is treated */
    const char **value;    /* as given, by index of option_fields; NULL: not given */
    bool dtype_is_assumed; /* neither the config nor an option states it */
    int32_t latent;        /* append: elements of MLA's latent, by the config */
    const char *config, *layer_type, *suite, *output;
    int64_t seed, rounds, threads;
    bool allow_unread; /* fields about RoPE that nothing reads are but told */
    bool json, quick, help, list;
} options;

/* Parses a command's arguments over the defaults, a --config file first. Returns false after a
 * message on stderr. */
bool options_parse(options *o, int argc, char **argv);
/* Sets options from "--name=value --name ..."; settings are separated by single spaces. */
bool options_apply(options *o, const char *settings);
/* Prints the options that a command takes, in groups. */
void options_help(FILE *file, int32_t command);

/* What a case is where nothing is said of it. */
options options_usual(void);
/* The name of the options' dtype, and whether the config left it open. */
const char *options_dtype(const options *o);

#endif
