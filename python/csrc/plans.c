#include "python/csrc/plans.h"

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

static const char *agree(const char *name, int32_t stated, int32_t found) {
    if (stated == 0 || found == 0 || stated == found)
        return NULL;
    return fail("%s is %d and the tensor has %d; allowed is what the tensor has", name, stated,
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
        return fail("cos and sin are given; allowed is neither unless angle_mode is table");
    int32_t whole = desc->rotary_dim ? desc->rotary_dim : desc->head_dim;
    desc->table_dtype = key->table_dtype;
    desc->angle_mode = ROPE_ANGLE_TABLE;
    if (desc->table_width == 0 && key->table_columns == whole)
        desc->table_width = ROPE_TABLE_FULL;
    int32_t needed = desc->table_width == ROPE_TABLE_FULL ? whole : whole / 2;
    int exact = desc->table_width == 0;
    if (exact ? key->table_columns == needed : key->table_columns >= needed)
        return NULL;
    return fail("cos has rows of %d; allowed is %d or %d, for rotary_dim %d", key->table_columns,
                whole / 2, whole, whole);
}

/* The library reads as many as there are pairs. */
static const char *check_axes(const config_text *config) {
    const rope_desc *desc = &config->desc;
    int32_t pairs = (desc->rotary_dim ? desc->rotary_dim : desc->head_dim) / 2;
    if (desc->axis_layout != ROPE_AXES_CUSTOM || !desc->pair_axis || config->axis_count == pairs)
        return NULL;
    return fail("pair_axis has %d entries; allowed is %d (rotary_dim / 2)", config->axis_count,
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

/* A norm's fields that are not given. */
static void complete_norm(rope_norm *norm, const rope_norm *both) {
    norm->type = norm->type ? norm->type : both->type;
    norm->scope = norm->scope ? norm->scope : both->scope;
    norm->offset = norm->offset ? norm->offset : both->offset;
    norm->dim = norm->dim ? norm->dim : both->dim;
    norm->weight = norm->weight ? norm->weight : both->weight;
    norm->rounding = norm->rounding ? norm->rounding : both->rounding;
    norm->eps = norm->eps != 0 ? norm->eps : both->eps;
}

/* A tensor that is absent has no steps. */
static void fill_part(rope_append_part *part, const rope_norm *both, const plan_key *key,
                      int which) {
    int present = which < 2 ? key->head_dim[which] != 0 : key->v_head_dim != 0;
    if (!present)
        *part = (rope_append_part){0};
    else if (both)
        complete_norm(&part->norm, both);
    if (key->weight_dtype[which] && part->norm.weight == 0)
        part->norm.weight = ROPE_NORM_WEIGHT;
    part->norm.weight_dtype = key->weight_dtype[which];
    part->store_dtype = key->store_dtype[which];
    part->scale = key->scale[which];
}

/* Without a rotation: a configuration tells how the model's other layers rotate. */
static rope_desc unrotated(const rope_desc *desc) {
    rope_desc kept = ROPE_DESC_INIT;
    kept.dtype = desc->dtype;
    kept.head_dim = desc->head_dim;
    kept.k_head_dim = desc->k_head_dim;
    kept.position_dtype = desc->position_dtype;
    kept.device = desc->device;
    kept.launch = desc->launch;
    kept.backend = desc->backend;
    kept.kernel = desc->kernel;
    return kept;
}

/* Keys that move have the type of their cache, or another that is stated. */
static const char *fill_dtype(rope_append_desc *desc, int32_t stated, const plan_key *key) {
    const int moves = desc->k_source == ROPE_SOURCE_CACHE;
    if (stated && !moves && stated != key->dtype)
        return fail("dtype is given; allowed is None, or the type of the tensors, unless keys move "
                    "in their cache");
    if (!stated && key->dtype > ROPE_BF16)
        return fail("dtype is not given; allowed with a cache of 8 bits is float32, float16 or "
                    "bfloat16");
    desc->rope.dtype = stated ? stated : key->dtype;
    return NULL;
}

static const char *append_fill(config_text *config, const plan_key *key) {
    rope_append_desc *desc = &config->append;
    const rope_norm *both = key->k_source == ROPE_SOURCE_CACHE ? NULL : &config->norm;
    const int32_t stated = desc->rope.dtype;
    if (config->desc.head_dim == 0)
        config->desc.head_dim = key->v_head_dim;
    desc->rope = desc->rotation == ROPE_ROTATION_OFF ? unrotated(&config->desc) : config->desc;
    desc->v_head_dim = key->v_head_dim;
    fill_part(&desc->q, both, key, 0);
    fill_part(&desc->k, both, key, 1);
    fill_part(&desc->v, NULL, key, 2);
    desc->cache = key->cache;
    desc->k_source = key->k_source;
    desc->page_size = key->page_size;
    desc->slot_dtype = key->cache == ROPE_CACHE_SLOTS ? key->index_dtype : 0;
    desc->table_dtype = key->cache == ROPE_CACHE_TABLE ? key->index_dtype : 0;
    desc->k_dim_block = key->dim_block[0];
    desc->v_dim_block = key->dim_block[1];
    return fill_dtype(desc, stated, key);
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
    if (!key->append && entry->config.layout == 0)
        entry->config.layout = LAYOUT_BSHD;
    return entry;
}

static const char *finish(plan_entry *entry) {
    const plan_key *key = &entry->key;
    config_text *config = &entry->config;
    const char *error = fill(config, key);
    if (error)
        return error;
    if (!key->append)
        return fail_of_library(rope_plan_create(&config->desc, &entry->plan));
    error = append_fill(config, key);
    if (error)
        return error;
    return fail_of_library(rope_append_plan_create(&config->append, &entry->plan));
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
