/* Errors of attention by length, backend after backend. */
#ifndef ROPEKIT_BENCH_ACCURACY_ATTENTION_H
#define ROPEKIT_BENCH_ACCURACY_ATTENTION_H

#include "bench/measure/record.h"

/* Measures the options' attention on their device, and where `others` on every backend that is
 * ready and by the reference; adds records and prints a table. False after a message. */
bool accuracy_attention(const options *o, bool others, record_list *list, FILE *file);

#endif
