/* A prompt and decoded tokens of one layer, with pages that rope_append fills. */
#ifndef ROPEKIT_BENCH_DEMO_ATTENTION_H
#define ROPEKIT_BENCH_DEMO_ATTENTION_H

#include "bench/workload/target.h"

/* Tokens of the prompt, where none are asked for. */
enum { DEMO_ATTENTION_TOKENS = 1024, DEMO_ATTENTION_QUICK_TOKENS = 128 };

/* The exit status of ropekit demo --attention. */
int demo_attention(options *o, const target *t);

#endif
