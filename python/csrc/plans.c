#include "python/csrc/plans.h"

#include "python/csrc/descriptors.h"
#include "python/csrc/failure.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1024 };
static _Atomic(plan_entry *) buckets[BUCKETS];

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

static void discard(plan_entry *entry) {
    rope_plan_destroy(entry->plan);
    config_text_release(&entry->config);
    free(entry);
}

/* An entry without its plan; *error where its text cannot be read. */
static plan_entry *begin(const plan_key *key, const char **error) {
    plan_entry *entry = calloc(1, sizeof *entry + key->length);
    if (!entry) {
        *error = fail_as(ROPE_ERROR_OUT_OF_MEMORY, "no memory for a plan");
        return NULL;
    }
    char *text = (char *)(entry + 1);
    memcpy(text, key->text, key->length);
    entry->key = *key;
    entry->key.text = text;
    *error =
        fail_as(ROPE_ERROR_INVALID_VALUE, config_text_parse(text, key->length, &entry->config));
    if (key->operation == OPERATION_ROPE && entry->config.layout == 0)
        entry->config.layout = LAYOUT_BSHD;
    return entry;
}

static const char *create_decode(plan_entry *entry) {
    rope_decode_desc desc = ROPE_DECODE_DESC_INIT;
    const char *error = fill_decode(&entry->config, &entry->key, &desc);
    return error ? error : fail_of_library(rope_decode_plan_create(&desc, &entry->plan));
}

static const char *create(plan_entry *entry) {
    const plan_key *key = &entry->key;
    config_text *config = &entry->config;
    const char *error = NULL;
    switch (key->operation) {
    case OPERATION_APPEND:
        error = fill_append(config, key);
        return error ? error
                     : fail_of_library(rope_append_plan_create(&config->append, &entry->plan));
    case OPERATION_ATTENTION:
        error = fill_attention(config, key);
        return error
                   ? error
                   : fail_of_library(rope_attention_plan_create(&config->attention, &entry->plan));
    case OPERATION_ATTENTION_BACKWARD:
        error = fill_attention(config, key);
        return error ? error
                     : fail_of_library(
                           rope_attention_backward_plan_create(&config->attention, &entry->plan));
    case OPERATION_DECODE:
        return create_decode(entry);
    default:
        return fail_of_library(rope_plan_create(&config->desc, &entry->plan));
    }
}

/* Whether dynamic scaling follows a call, where what rotates has no length of its own. */
static int64_t limit_of(const plan_entry *entry) {
    const rope_desc *desc =
        entry->key.operation == OPERATION_ROPE ? &entry->config.desc
        : entry->key.operation == OPERATION_APPEND || entry->key.operation == OPERATION_DECODE
            ? &entry->config.append.rope
            : &entry->config.attention.rope;
    const int follows = desc->rope_type == ROPE_TYPE_DYNAMIC && desc->alpha == 0;
    return follows && desc->sequence_length == 0 ? desc->max_position_embeddings : 0;
}

static const char *finish(plan_entry *entry) {
    rope_attention_merge_desc merge;
    if (entry->key.operation == OPERATION_MERGE) {
        fill_merge(&merge, &entry->key);
        return fail_of_library(rope_attention_merge_plan_create(&merge, &entry->plan));
    }
    const char *error = fill_rotation(&entry->config, &entry->key);
    if (!error)
        error = create(entry);
    if (!error)
        entry->limit = limit_of(entry);
    return error;
}

static plan_entry *make(const plan_key *key, const char **error) {
    plan_entry *entry = begin(key, error);
    if (!*error)
        *error = finish(entry);
    if (!*error)
        return entry;
    if (entry)
        discard(entry);
    return NULL;
}

void plan_key_put(plan_key *key, const tensor *lead, const tensor *cos) {
    int64_t columns = cos->handle ? cos->sizes[cos->dims - 1] : 0;
    key->dtype = lead->dtype;
    key->table_dtype = cos->handle ? cos->dtype : 0;
    key->table_columns = columns < INT32_MAX ? (int32_t)columns : INT32_MAX;
    key->accelerated = !tensor_on_cpu(lead);
    key->device = tensor_on_cpu(lead) ? 0 : lead->device;
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
    const char *error = NULL;
    plan_entry *entry = begin(&key, &error);
    if (!error) {
        suppose_widths(&entry->config);
        entry->config.desc.kernel = NULL; /* perhaps another device's */
        error = finish(entry);
    }
    if (entry)
        discard(entry);
    return error;
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

/* ---- plans of one length, each of one call at a time: nothing waits, nor does a forked child ----
 */

enum { KEPT = 16 };
static _Atomic(plan_entry *) kept[KEPT];
static atomic_uint oldest;

/* Into an empty place, or in place of another. */
static void keep(plan_entry *entry) {
    for (int i = 0; i < KEPT; i++) {
        plan_entry *none = NULL;
        if (atomic_compare_exchange_strong(&kept[i], &none, entry))
            return;
    }
    entry = atomic_exchange(&kept[atomic_fetch_add(&oldest, 1) % KEPT], entry);
    if (entry)
        discard(entry);
}

static plan_entry *take(const plan_key *key) {
    for (int i = 0; i < KEPT; i++) {
        plan_entry *entry = atomic_exchange(&kept[i], NULL);
        if (entry && equals(&entry->key, key))
            return entry;
        if (entry)
            keep(entry);
    }
    return NULL;
}

const plan_entry *plan_scaled(const plan_entry *entry, int64_t longest, const char **error) {
    if (longest <= entry->limit)
        return entry;
    plan_key key = entry->key;
    key.sequence_length = longest;
    if (key.accelerated)
        return plan_for(&key, error);
    plan_entry *found = take(&key);
    return found ? found : make(&key, error);
}

void plan_return(const plan_entry *entry) {
    if (entry && entry->key.sequence_length && !entry->key.accelerated)
        keep((plan_entry *)(uintptr_t)entry);
}
