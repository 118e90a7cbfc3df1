#include "python/csrc/plans.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1024 };
static _Atomic(plan_entry *) buckets[BUCKETS];

static _Thread_local char message[512];

/* The numbers of a key, which follow its text. */
static const unsigned char *numbers(const plan_key *key) {
    return (const unsigned char *)key + offsetof(plan_key, dtype);
}

enum { NUMBERS = sizeof(plan_key) - offsetof(plan_key, dtype) };

/* FNV-1a over words of eight bytes. */
static uint64_t mix(uint64_t hash, const void *bytes, size_t length) {
    const unsigned char *at = bytes;
    for (uint64_t part = 0; length; part = 0) {
        size_t step = length < sizeof part ? length : sizeof part;
        memcpy(&part, at, step);
        hash = (hash ^ part) * UINT64_C(0x100000001b3);
        hash ^= hash >> 32;
        at += step;
        length -= step;
    }
    return hash;
}

static int equals(const plan_key *a, const plan_key *b) {
    return a->length == b->length && memcmp(numbers(a), numbers(b), NUMBERS) == 0 &&
           memcmp(a->text, b->text, a->length) == 0;
}

static const plan_entry *find(const plan_entry *entry, const plan_key *key) {
    while (entry && !equals(&entry->key, key))
        entry = entry->next;
    return entry;
}

static const char *agree(const char *name, int32_t stated, int32_t found) {
    if (stated == 0 || found == 0 || stated == found)
        return NULL;
    snprintf(message, sizeof message, "%s is %d in the configuration and %d in the tensor", name,
             stated, found);
    return message;
}

/* One head_dim serves both, unless the configuration or the tensors say that k has its own. */
static const char *fill_heads(rope_desc *desc, const plan_key *key, int32_t role) {
    int lone_k = role == ROLE_K && !key->head_dim[1];
    int32_t q = lone_k ? 0 : key->head_dim[0], k = key->head_dim[lone_k ? 0 : 1];
    const char *error = agree("head_dim", desc->head_dim, q);
    if (!error)
        error = agree(desc->k_head_dim ? "k_head_dim" : "head_dim",
                      desc->k_head_dim ? desc->k_head_dim : desc->head_dim, k);
    if (desc->head_dim == 0) /* without q, any that holds q's window */
        desc->head_dim = q ? q : desc->rotary_offset + (desc->rotary_dim ? desc->rotary_dim : k);
    if (desc->k_head_dim == 0 && k && k != desc->head_dim)
        desc->k_head_dim = k;
    return error;
}

/* A table is as wide as its row where that is unambiguous; table_width takes the front of a wider
 * one. */
static const char *fill_table(rope_desc *desc, const plan_key *key) {
    if (!key->table_dtype)
        return NULL;
    int32_t whole = desc->rotary_dim ? desc->rotary_dim : desc->head_dim;
    desc->table_dtype = key->table_dtype;
    if (desc->angle_mode == 0)
        desc->angle_mode = ROPE_ANGLE_TABLE;
    if (desc->table_width == 0 && key->table_columns == whole)
        desc->table_width = ROPE_TABLE_FULL;
    int32_t needed = desc->table_width == ROPE_TABLE_FULL ? whole : whole / 2;
    int exact = desc->table_width == 0;
    if (exact ? key->table_columns == needed : key->table_columns >= needed)
        return NULL;
    snprintf(message, sizeof message, "cos has rows of %d; allowed is %d or %d, for rotary_dim %d",
             key->table_columns, whole / 2, whole, whole);
    return message;
}

static const char *fill(config_text *config, const plan_key *key) {
    rope_desc *desc = &config->desc;
    desc->dtype = key->dtype;
    desc->position_dtype = key->position_dtype;
    desc->device = key->device;
    desc->backend = key->accelerated ? "cuda,hip" : "cpu";
    const char *error = fill_heads(desc, key, config->role);
    return error ? error : fill_table(desc, key);
}

static void discard(plan_entry *entry) {
    rope_plan_destroy(entry->plan);
    config_text_release(&entry->config);
    free(entry);
}

static plan_entry *make(const plan_key *key, const char **error) {
    plan_entry *entry = calloc(1, sizeof *entry + key->length);
    if (!entry) {
        *error = "no memory for a plan";
        return NULL;
    }
    char *text = (char *)(entry + 1);
    memcpy(text, key->text, key->length);
    entry->key = *key;
    entry->key.text = text;
    *error = config_text_parse(text, key->length, &entry->config);
    if (!*error)
        *error = fill(&entry->config, key);
    if (!*error && rope_plan_create(&entry->config.desc, &entry->plan) != ROPE_OK)
        *error = rope_last_error();
    if (!*error)
        return entry;
    discard(entry);
    return NULL;
}

const plan_entry *plan_for(const plan_key *key, const char **error) {
    uint64_t hash =
        mix(mix(UINT64_C(0xcbf29ce484222325), key->text, key->length), numbers(key), NUMBERS);
    _Atomic(plan_entry *) *bucket = &buckets[hash % BUCKETS];
    plan_entry *first = atomic_load_explicit(bucket, memory_order_acquire);
    const plan_entry *found = find(first, key);
    if (found)
        return found;
    plan_entry *made = make(key, error);
    if (!made)
        return NULL;
    /* Another thread may have made the same one: the first to be listed stays. */
    made->next = first;
    while (!atomic_compare_exchange_weak(bucket, &made->next, made)) {
        found = find(made->next, key);
        if (found) {
            discard(made);
            return found;
        }
    }
    return made;
}
