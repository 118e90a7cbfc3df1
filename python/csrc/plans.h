/* Plans by what they were made from: found without a lock, kept as long as the process, because a
 * captured graph may hold one. */
#ifndef ROPEKIT_PYTHON_PLANS_H
#define ROPEKIT_PYTHON_PLANS_H

#include "python/csrc/config_text.h"
#include "python/csrc/tensor.h"

/* What a plan is of. */
enum {
    OPERATION_ROPE,
    OPERATION_APPEND,
    OPERATION_ATTENTION,
    OPERATION_ATTENTION_BACKWARD,
    OPERATION_DECODE,
    OPERATION_MERGE
};

/* What the tensors of a call tell beside its text. All of it counts, so no byte is left unset. */
typedef struct plan_key {
    const char *text;
    size_t length;
    int32_t dtype;          /* ROPE_F32..ROPE_F64 */
    int32_t head_dim[2];    /* of q and of k, 0 where it is absent */
    int32_t position_dtype; /* ROPE_I32 or ROPE_I64 */
    int32_t table_dtype;    /* 0 without the caller's tables */
    int32_t table_columns;  /* entries of a row of them */
    int32_t accelerated;    /* 0: the backend cpu */
    int32_t device;
    int32_t operation;
    int32_t v_head_dim;      /* this and the rest of append and attention */
    int32_t store_dtype[3];  /* of q's result, of k's and v's cache; 0: none */
    int32_t scale[3];        /* ROPE_SCALE_ */
    int32_t weight_dtype[3]; /* 0 without a weight */
    int32_t cache;           /* ROPE_CACHE_ */
    int32_t slot_dtype;
    int32_t table_index_dtype; /* of the block table */
    int32_t dim_block[2];      /* of k's and v's cache */
    int32_t k_source;          /* ROPE_SOURCE_ */
    int32_t sink_dtype;        /* 0 without sinks */
    int64_t tree;              /* whether there are bits of a tree */
    int64_t page_size;
    int64_t sequence_length; /* of plan_scaled; 0: what the text says */
} plan_key;

typedef struct plan_entry {
    struct plan_entry *next;
    plan_key key;
    config_text config;
    rope_plan *plan;
    int64_t limit; /* longest position + 1 that dynamic scaling leaves as it is; 0: scaling does not
                      follow the call */
} plan_entry;

/* What the lead of the tensors tells, and a table of cos where its handle is not NULL. */
void plan_key_put(plan_key *key, const tensor *lead, const tensor *cos);

/* Finds or makes a plan. Returns NULL where it cannot, and *error then says why until the thread's
 * next call. */
const plan_entry *plan_for(const plan_key *key, const char **error);

/* The entry, or one whose sequence_length is that of a call beyond its limit. A captured graph may
 * hold a device's, which is kept; a long decode would fill the CPU's memory with others. */
const plan_entry *plan_scaled(const plan_entry *entry, int64_t longest, const char **error);

/* Gives back what plan_scaled returned, behind the call; NULL is allowed. */
void plan_return(const plan_entry *entry);

/* What is wrong with a text whatever the tensors, or NULL. */
const char *plan_check(const char *text, size_t length);

#endif
