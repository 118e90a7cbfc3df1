/* Norms of queries and keys of a generated case, whose random numbers are a stream of their own. */
#ifndef ROPEKIT_TESTS_ATTENTION_NORMS_H
#define ROPEKIT_TESTS_ATTENTION_NORMS_H

#include "tests/attention/compare.h"

/* The descriptor's, then weights in the arena, then their numbers. */
void attention_choose_norms(attention_case *c);
void attention_choose_weights(attention_case *c);
void attention_fill_weights(attention_case *c);
void attention_describe_norms(const attention_case *c, char *text, size_t room);

const rope_norm *attention_norm(const attention_case *c, int32_t tensor);
/* Elements of a gradient of its weights; 0 where there are none. */
int64_t attention_weights(const attention_case *c, int32_t tensor);

/* An append on the CPU that normalises q or k alone, of heads side by side. */
typedef struct attention_append {
    rope_append_desc desc;
    rope_append_args args;
} attention_append;
attention_append attention_append_of(const attention_case *c, int32_t tensor, int64_t batch,
                                     int64_t tokens, const void *in, void *out);
/* By it, `tokens` of them in place. */
void attention_normalise(const attention_case *c, int32_t tensor, int64_t tokens, void *data);

#endif
