#include "python/csrc/descriptors.h"

#include "python/csrc/failure.h"

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

static const char *backend_of(const plan_key *key) {
    return key->accelerated ? "cuda,hip" : "cpu";
}

const char *fill_rotation(config_text *config, const plan_key *key) {
    rope_desc *desc = &config->desc;
    desc->dtype = key->dtype;
    desc->position_dtype = key->position_dtype;
    desc->device = key->device;
    desc->backend = backend_of(key);
    if (key->sequence_length)
        desc->sequence_length = key->sequence_length;
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

const char *fill_append(config_text *config, const plan_key *key) {
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
    desc->slot_dtype = key->slot_dtype;
    desc->table_dtype = key->table_index_dtype;
    desc->k_dim_block = key->dim_block[0];
    desc->v_dim_block = key->dim_block[1];
    return fill_dtype(desc, stated, key);
}

/* Where the text does not say: keys in a cache were rotated when they were written. */
static const char *fill_rotated(rope_attention_desc *desc, const config_text *config,
                                const plan_key *key) {
    static const char *const names[] = {"", "qk", "q"};
    const int off = config->append.rotation == ROPE_ROTATION_OFF;
    if (off && desc->rotation && desc->rotation != ROPE_ATTENTION_ROTATE_NONE)
        return fail("rotate is '%s'; allowed is None or 'none' where rotation is 'off'",
                    names[desc->rotation]);
    if (desc->rotation == 0)
        desc->rotation = off          ? ROPE_ATTENTION_ROTATE_NONE
                         : key->cache ? ROPE_ATTENTION_ROTATE_Q
                                      : ROPE_ATTENTION_ROTATE_QK;
    desc->rope =
        desc->rotation == ROPE_ATTENTION_ROTATE_NONE ? unrotated(&config->desc) : config->desc;
    return NULL;
}

void fill_window_right(config_text *config) {
    rope_attention_desc *desc = &config->attention;
    if (config->window_right == 0)
        desc->mask = ROPE_MASK_CAUSAL; /* no key after a query's own */
    else if (config->window_right != -1)
        desc->window_right = config->window_right;
}

/* A configuration tells of norms that its caller may have applied: those with weights are ours. */
static void fill_norms(config_text *config, const plan_key *key) {
    rope_norm *const norms[] = {&config->attention.q_norm, &config->attention.k_norm};
    const rope_append_part *const parts[] = {&config->append.q, &config->append.k};
    for (int i = 0; i < 2; i++) {
        if (!key->weight_dtype[i])
            continue;
        *norms[i] = parts[i]->norm;
        complete_norm(norms[i], &config->norm);
        norms[i]->weight = norms[i]->weight ? norms[i]->weight : ROPE_NORM_WEIGHT;
        norms[i]->weight_dtype = key->weight_dtype[i];
    }
}

static const char *fill_mask(config_text *config, const plan_key *key) {
    rope_attention_desc *desc = &config->attention;
    if (key->tree && config->window_right == 0)
        return fail("window_right is 0; allowed is None with tree_mask");
    fill_window_right(config);
    if (key->tree && desc->mask)
        return fail("causal is given; allowed is None with tree_mask");
    if (key->tree)
        desc->mask = ROPE_MASK_TREE;
    desc->sink_dtype = key->sink_dtype;
    return NULL;
}

const char *fill_attention(config_text *config, const plan_key *key) {
    rope_attention_desc *desc = &config->attention;
    rope_attention_store *const stores[] = {&desc->k, &desc->v};
    const char *error = fill_rotated(desc, config, key);
    if (!error)
        error = fill_mask(config, key);
    if (error)
        return error;
    fill_norms(config, key);
    desc->v_head_dim = key->v_head_dim;
    desc->cache = key->cache;
    desc->page_size = key->page_size;
    desc->ring = config->append.ring;
    desc->table_dtype = key->table_index_dtype;
    for (int i = 0; i < 2; i++) {
        stores[i]->dtype = key->store_dtype[1 + i];
        stores[i]->scale = key->scale[1 + i];
        stores[i]->dim_block = key->dim_block[i];
    }
    return NULL;
}

const char *fill_decode(config_text *config, const plan_key *key, rope_decode_desc *desc) {
    rope_attention_desc *attention = &config->attention;
    if (attention->rotation)
        return fail("rotate is given; allowed in decode is None, with rotation 'off' where neither "
                    "q nor k rotates");
    const char *error = fill_append(config, key);
    if (!error)
        error = fill_mask(config, key);
    if (error)
        return error;
    attention->rotation = ROPE_ATTENTION_ROTATE_NONE; /* behind the append */
    attention->ring = config->append.ring;
    desc->append = config->append;
    desc->mask = attention->mask;
    desc->sink_dtype = attention->sink_dtype;
    desc->scale = attention->scale;
    desc->soft_cap = attention->soft_cap;
    desc->window = attention->window;
    desc->window_right = attention->window_right;
    desc->chunk = attention->chunk;
    return NULL;
}

void fill_merge(rope_attention_merge_desc *desc, const plan_key *key) {
    *desc = (rope_attention_merge_desc){.struct_size = sizeof *desc,
                                        .dtype = key->dtype,
                                        .head_dim = key->head_dim[0],
                                        .backend = backend_of(key),
                                        .device = key->device};
}
