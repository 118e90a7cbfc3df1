#ifndef ROPEKIT_BACKENDS_CPU_MODEL_NAME_H
#define ROPEKIT_BACKENDS_CPU_MODEL_NAME_H

/* Writes into text the model that /proc/cpuinfo names, on x86 with its microarchitecture, else with
   family and model: virtual machines often name the brand alone. "unknown" where the system does
   not say. */
void cpu_model_name(char *text, int size);

#endif
