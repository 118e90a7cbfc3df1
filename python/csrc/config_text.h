/*
 * A descriptor as text, "name=value" fields divided by spaces: what a graph of PyTorch can hold and
 * save. Names and values are those of rope_desc, of rope_append_desc, where a part's have its
 * letter ahead of them, as in q_norm_type, and of rope_attention_desc; enumerations by name, lists
 * divided by commas.
 */
#ifndef ROPEKIT_PYTHON_CONFIG_TEXT_H
#define ROPEKIT_PYTHON_CONFIG_TEXT_H

#include <ropekit/attention.h>

/* Order of a tensor's dimensions; thd is packed, without a batch. */
typedef enum config_layout {
    LAYOUT_BSHD = 1,
    LAYOUT_BHSD = 2,
    LAYOUT_SBHD = 3,
    LAYOUT_THD = 4
} config_layout;

/* A lone tensor as q, or as k, whose window and XPos scale may differ. */
typedef enum config_role { ROLE_Q = 1, ROLE_K = 2 } config_role;

/* What a text says. dtype, device and what else the tensors tell are left to them. */
typedef struct config_text {
    rope_desc desc;
    rope_append_desc append;       /* without its rope, but for dtype */
    rope_attention_desc attention; /* without its rope; its ring is append's */
    rope_norm norm;                /* of q and k, where theirs does not say */
    int32_t layout;                /* config_layout; 0: not given */
    int32_t role;                  /* config_role */
    int32_t axis_count;            /* entries of desc.pair_axis */
    int64_t window_right;          /* of attention; 0: no key after a query's own; -1: all */
    double *lists;                 /* what desc points to */
    char *strings;
} config_text;

/* Reads text, of which no byte after length counts. Returns NULL, or what is wrong, valid until the
 * thread's next call. */
const char *config_text_parse(const char *text, size_t length, config_text *config);
void config_text_release(config_text *config);

/* Writes how q and k are rotated and normalised as text that ends in a zero. Returns its length
 * without it, whatever size is. */
size_t config_text_print(const rope_desc *desc, const rope_norm *norm, char *text, size_t size);

#endif
