/* Of which sequence a token is, and where in it. */
#ifndef ROPEKIT_ORACLE_SEQUENCE_H
#define ROPEKIT_ORACLE_SEQUENCE_H

#include <ropekit/rope.h>

typedef struct oracle_site {
    int64_t sequence; /* -1: outside every packed one */
    int64_t index;    /* in the whole sequence */
    int64_t first;    /* token of the call that is its first one, were it there */
    int64_t local;    /* tokens of it that this rank holds */
    int64_t shift;    /* offset of the call plus the sequence's own */
    int32_t divides;  /* 0: the ranks do not hold equal parts, or zigzag ranks not two chunks */
} oracle_site;
oracle_site oracle_site_of(const rope_desc *desc, const rope_args *args, int64_t batch,
                           int64_t token);

/* Element i of an array of ROPE_I32 or, with any other dtype, of ROPE_I64. */
int64_t oracle_index(int32_t dtype, const void *array, int64_t i);

#endif
