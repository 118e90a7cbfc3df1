#include "python/csrc/plans.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1024 };
static _Atomic(plan_entry *) buckets[BUCKETS];

static _Thread_local char message[512];

#define FAIL(...) (snprintf(message, sizeof message, __VA_ARGS__), (const char *)message)

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
    return FAIL("%s is %d and the tensor has %d; allowed is what the tensor has", name, stated,
                found);
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
    if (desc->angle_mode && desc->angle_mode != ROPE_ANGLE_TABLE)
        return FAIL("cos and sin are given; allowed is neither unless angle_mode is table");
    int32_t whole = desc->rotary_dim ? desc->rotary_dim : desc->head_dim;
    desc->table_dtype = key->table_dtype;
    desc->angle_mode = ROPE_ANGLE_TABLE;
    if (desc->table_width == 0 && key->table_columns == whole)
        desc->table_width = ROPE_TABLE_FULL;
    int32_t needed = desc->table_width == ROPE_TABLE_FULL ? whole : whole / 2;
    int exact = desc->table_width == 0;
    if (exact ? key->table_columns == needed : key->table_columns >= needed)
        return NULL;
    return FAIL("cos has rows of %d; allowed is %d or %d, for rotary_dim %d", key->table_columns,
                whole / 2, whole, whole);
}

/* The library reads as many as there are pairs. */
static const char *check_axes(const config_text *config) {
    const rope_desc *desc = &config->desc;
    int32_t pairs = (desc->rotary_dim ? desc->rotary_dim : desc->head_dim) / 2;
    if (desc->axis_layout != ROPE_AXES_CUSTOM || !desc->pair_axis || config->axis_count == pairs)
        return NULL;
    return FAIL("pair_axis has %d entries; allowed is %d (rotary_dim / 2)", config->axis_count,
                pairs);
}

static const char *fill(config_text *config, const plan_key *key) {
    rope_desc *desc = &config->desc;
    desc->dtype = key->dtype;
    desc->position_dtype = key->position_dtype;
    desc->device = key->device;
    desc->backend = key->accelerated ? "cuda,hip" : "cpu";
    const char *error = fill_heads(desc, key, config->role);
    if (!error)
        error = fill_table(desc, key);
    return error ? error : check_axes(config);
}

static void discard(plan_entry *entry) {
    rope_plan_destroy(entry->plan);
    config_text_release(&entry->config);
    free(entry);
}

/* An entry without its plan; *error where its text cannot be read. */
static plan_entry *begin(const plan_key *key, const char **error) {
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
    return entry;
}

static const char *finish(plan_entry *entry, rope_status *status) {
    const char *error = fill(&entry->config, &entry->key);
    *status =
        error ? ROPE_ERROR_INVALID_VALUE : rope_plan_create(&entry->config.desc, &entry->plan);
    return *status == ROPE_OK || error ? error : rope_last_error();
}

static plan_entry *make(const plan_key *key, const char **error, rope_status *status) {
    plan_entry *entry = begin(key, error);
    *status = entry ? ROPE_ERROR_INVALID_VALUE : ROPE_ERROR_OUT_OF_MEMORY;
    if (!*error)
        *error = finish(entry, status);
    if (!*error)
        return entry;
    if (entry)
        discard(entry);
    return NULL;
}

/* Widths that the tensors would tell, by what the lists say of them. */
static void suppose_widths(config_text *config) {
    enum { ANY = 128 };
    rope_desc *desc = &config->desc;
    int64_t pairs = desc->factor_count ? desc->factor_count : config->axis_count;
    for (int a = 0; a < ROPE_MAX_AXES && !desc->factor_count; a++)
        pairs += desc->sections[a];
    if (pairs == 0)
        pairs = (desc->k_head_dim && desc->k_head_dim < ANY ? desc->k_head_dim : ANY) / 2;
    if (desc->rotary_dim == 0 && desc->head_dim == 0)
        desc->rotary_dim =
            pairs < ROPE_MAX_ROTARY_DIM / 2 ? 2 * (int32_t)pairs : ROPE_MAX_ROTARY_DIM;
    if (desc->head_dim == 0)
        desc->head_dim = ROPE_MAX_HEAD_DIM;
}

const char *plan_check(const char *text, size_t length) {
    const plan_key key = {
        .text = text, .length = length, .dtype = ROPE_F32, .position_dtype = ROPE_I64};
    rope_status status;
    const char *error = NULL;
    plan_entry *entry = begin(&key, &error);
    if (!error) {
        suppose_widths(&entry->config);
        entry->config.desc.kernel = NULL; /* perhaps another device's */
        error = finish(entry, &status);
    }
    if (entry)
        discard(entry);
    return error;
}

const plan_entry *plan_for(const plan_key *key, const char **error, rope_status *status) {
    uint64_t hash =
        mix(mix(UINT64_C(0xcbf29ce484222325), key->text, key->length), numbers(key), NUMBERS);
    _Atomic(plan_entry *) *bucket = &buckets[hash % BUCKETS];
    plan_entry *first = atomic_load_explicit(bucket, memory_order_acquire);
    const plan_entry *found = find(first, key);
    if (found)
        return found;
    plan_entry *made = make(key, error, status);
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
