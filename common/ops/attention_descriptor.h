/* A descriptor of "attention" with every default filled in. */
#ifndef ROPEKIT_COMMON_ATTENTION_DESCRIPTOR_H
#define ROPEKIT_COMMON_ATTENTION_DESCRIPTOR_H

#include <ropekit/attention.h>

/* Reads the caller's struct, of any version, and checks each field. */
rope_status rope_attention_descriptor_read(const rope_attention_desc *given,
                                           rope_attention_desc *full);

#endif
