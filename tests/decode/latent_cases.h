/* Calls of latents: keys of 576 elements in pages, whose first 512 are their values. */
#ifndef ROPEKIT_TESTS_DECODE_LATENT_CASES_H
#define ROPEKIT_TESTS_DECODE_LATENT_CASES_H

#include "tests/decode/cases.h"

enum {
    LATENT_DIM = 576,
    LATENT_VALUE_DIM = 512,
    LATENT_SEQUENCES = 6,
    LATENT_PLACES = 1792,
    LATENT_OUTSIDE = 3 /* tokens of no sequence */
};

enum { LATENT_EVEN = 1, LATENT_UNEVEN = 2 };

typedef struct latent {
    int32_t dtype, tokens, group, page_size;
    int32_t k_heads; /* 0: 1 */
    int32_t norm, one_plus;
    int32_t pairing_in, pairing_out;
    int32_t slots, full, window, chunk, sinks;
    int32_t sequences, places; /* 0: LATENT_SEQUENCES, LATENT_PLACES */
    int32_t even;              /* all have as many keys as the longest */
    int32_t packed; /* LATENT_EVEN: of `tokens`; UNEVEN: of at most as many, and some of none */
} latent;

/* The parts of an arena; lists have room for indices of 64 bits. */
typedef struct latent_parts {
    size_t q, k, weight, sinks, cache, numbers, table, slots, lengths, starts, boundaries, out, lse,
        flag, bytes;
} latent_parts;

int64_t latent_sequences(const latent *o);
int64_t latent_k_heads(const latent *o);
int64_t latent_q_heads(const latent *o);
int64_t latent_pages(const latent *o);

/* Tokens that the pages of a sequence hold. */
int32_t latent_held(const latent *o);

/* New tokens of a sequence, those of all sequences ahead of one, and those of a call. */
int32_t latent_tokens(const latent *o, int64_t s);
int64_t latent_tokens_ahead(const latent *o, int64_t sequence);
int64_t latent_all_tokens(const latent *o);

latent_parts latent_parts_of(const latent *o);
int32_t *latent_list(const decode_case *c, size_t part);

/* Makes a call of the case, from random numbers of `index`; free(c->append.base.arena). */
void latent_make(decode_case *c, const latent *o, const latent_parts *p, int64_t index);

#endif
