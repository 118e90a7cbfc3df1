/* Descriptors of the library from what a text and the tensors of a call say. */
#ifndef ROPEKIT_PYTHON_DESCRIPTORS_H
#define ROPEKIT_PYTHON_DESCRIPTORS_H

#include "python/csrc/plans.h"

#include <ropekit/decode.h>

/* Completes config->desc, from which those of append and attention are made. Each returns NULL or
 * what is wrong. */
const char *fill_rotation(config_text *config, const plan_key *key);
const char *fill_append(config_text *config, const plan_key *key);
const char *fill_attention(config_text *config, const plan_key *key);

/* The same of config->append, and of config->attention what a decode has beside it. */
const char *fill_decode(config_text *config, const plan_key *key, rope_decode_desc *desc);

/* Puts window_right into config->attention, whose own has no 0 but for all. */
void fill_window_right(config_text *config);

void fill_merge(rope_attention_merge_desc *desc, const plan_key *key);

#endif
