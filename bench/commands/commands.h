/* The subcommands; each returns the tool's exit status. */
#ifndef ROPEKIT_BENCH_COMMANDS_H
#define ROPEKIT_BENCH_COMMANDS_H

#include "bench/options/options.h"

int command_info(options *o);
int command_verify(options *o);
int command_bench(options *o);
int command_demo(options *o);
int command_tune(options *o);

#endif
