/*
 * What Transformers computes: tests/model/goldens.tsv, written by scripts/goldens.py, and the
 * configurations of examples/configs. The program holds both, so that it can be moved.
 */
#ifndef ROPEKIT_TESTS_GOLDENS_H
#define ROPEKIT_TESTS_GOLDENS_H

#include <stdint.h>

enum { GOLDEN_COLUMNS = 7, GOLDEN_MAX_PAIRS = 512 };

/* The index-th row of a kind, the columns of its row; NULL past the last. */
typedef const char *golden_row[GOLDEN_COLUMNS];
const golden_row *golden_find(const char *kind, int index);
/* The whole numbers of a column, at most `most`; returns how many. */
int32_t golden_numbers(const char *column, int64_t *numbers, int32_t most);
/* The bit patterns of a column as elements of 2 or 4 bytes; returns how many. */
int32_t golden_bits(const char *column, int32_t element_bytes, void *elements, int32_t most);

/* A configuration and its frequencies. */
typedef struct golden_frequency {
    const char *name, *json;
    int32_t long_set;        /* 1: of longrope's long sequences */
    int64_t sequence_length; /* of a dynamic forward pass, or 0 */
    int32_t pairs;
    float inv_freq[GOLDEN_MAX_PAIRS];
    double attention_factor;
} golden_frequency;
/* Reads the index-th; 0 past the last. */
int golden_frequency_at(int index, golden_frequency *golden);
/* Reads that of a name. */
void golden_frequency_of(const char *name, golden_frequency *golden);

#endif
