/* What a shell may complete. */
#ifndef ROPEKIT_BENCH_COMPLETION_H
#define ROPEKIT_BENCH_COMPLETION_H

#include <stdint.h>
#include <stdio.h>

/* Prints the options of a command, with the values that are known, one a line. */
void completion_words(FILE *file, int32_t command);

#endif
