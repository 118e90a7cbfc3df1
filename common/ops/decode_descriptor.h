/* Descriptors of "decode". */
#ifndef ROPEKIT_COMMON_DECODE_DESCRIPTOR_H
#define ROPEKIT_COMMON_DECODE_DESCRIPTOR_H

#include <ropekit/decode.h>

/* Checks a descriptor of whatever version, and fills in that of each of its two operations. */
rope_status rope_decode_descriptor_read(const rope_decode_desc *desc, rope_append_desc *append,
                                        rope_attention_desc *attention);

#endif
