/* Two devices and their memory. */
#ifndef ROPEKIT_HIP_EMULATION_DEVICE_H
#define ROPEKIT_HIP_EMULATION_DEVICE_H

#include "tests/hip_emulation/kernel.h"

enum { EMULATED_DEVICES = 2 };

/* What follows, and the work of both devices, is under one lock. */
void device_lock(void);
void device_unlock(void);

/* 1 where `bytes` from a pointer on lie in one allocation of the thread's current device, as
 * ropekit has it for every copy; HIP copies memory of the others too. */
int memory_holds(const void *pointer, size_t bytes);
/* Gives an allocation back; 0 where there is none at that pointer. */
int memory_release(void *pointer);

#endif
