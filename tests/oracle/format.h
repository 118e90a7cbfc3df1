/* Floating formats. */
#ifndef ROPEKIT_ORACLE_FORMAT_H
#define ROPEKIT_ORACLE_FORMAT_H

#include <stdint.h>

/* Unit roundoff, half the least subnormal and the largest number of a floating type. */
typedef struct oracle_format {
    int precision;
    int least; /* exponent of the least subnormal */
    double unit, tiny, largest;
} oracle_format;
const oracle_format *oracle_format_of(int32_t dtype);

#endif
