/* SIGINT ends a measurement and keeps what was measured; a second one ends the tool. */
#ifndef ROPEKIT_BENCH_INTERRUPT_H
#define ROPEKIT_BENCH_INTERRUPT_H

#include <stdbool.h>

void interrupt_catch(void);
bool interrupted(void);

#endif
