#define _GNU_SOURCE
#include "common/abi.h"
#include "common/model/config_fields.h"
#include "common/ops/rope_descriptor.h"
#include "common/status.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FIELDS = 1024 };

static int speaks_of_rope(const char *name) {
    return strcasestr(name, "rope") || strcasestr(name, "rotary") || strcasestr(name, "theta");
}

/* Model fields that are about RoPE alone: reported where nothing reads them. */
static int is_about_rope(const char *name) {
    return speaks_of_rope(name) || strcmp(name, "original_max_position_embeddings") == 0;
}

int rope_config_takes(const char *name) {
    static const char *const names[] = {
        "alibi",
        "attention_chunk_size",
        "attention_head_dim",
        "attention_k_eq_v",
        "attention_window_size",
        "d_model",
        "dtype",
        "global_head_dim",
        "head_dim",
        "hidden_size",
        "kv_channels",
        "kv_lora_rank",
        "kv_n_heads",
        "local_attention",
        "max_position_embeddings",
        "max_seq_len",
        "model_type",
        "multi_query",
        "n_embd",
        "n_head",
        "n_heads",
        "n_positions",
        "new_decoder_architecture",
        "num_attention_heads",
        "num_global_key_value_heads",
        "num_key_value_heads",
        "num_kv_heads",
        "position_embedding_type",
        "position_embeddings_type",
        "qk_nope_head_dim",
        "rms_norm_eps",
        "sliding_window",
        "torch_dtype",
        "use_sliding_window",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return 1;
    return is_about_rope(name);
}

static rope_status check_new(const rope_config *config, const config_field *field) {
    if (strlen(field->name) > ROPE_CONFIG_MAX_TEXT)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "the name \"%.40s...\" has %zu characters; allowed is 0..%d", field->name,
                         strlen(field->name), ROPE_CONFIG_MAX_TEXT);
    if (field->text && strlen(field->text) > ROPE_CONFIG_MAX_TEXT)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s has %zu characters; allowed is 0..%d",
                         field->name, strlen(field->text), ROPE_CONFIG_MAX_TEXT);
    if (field->count > ROPE_MAX_ROTARY_DIM)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "%s has %d entries; allowed is 0..%d",
                         field->name, field->count, ROPE_MAX_ROTARY_DIM);
    if (config->count >= MAX_FIELDS)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s is field %d of a configuration; allowed is 1..%d", field->name,
                         config->count + 1, MAX_FIELDS);
    return ROPE_OK;
}

rope_status rope_config_add(rope_config *config, const config_field *field) {
    rope_status status = check_new(config, field);
    if (status != ROPE_OK)
        return status;
    size_t list_bytes = (size_t)field->count * sizeof(double);
    size_t name_bytes = strlen(field->name) + 1;
    size_t text_bytes = field->text ? strlen(field->text) + 1 : 0;
    config_field *made = malloc(sizeof *made + list_bytes + name_bytes + text_bytes);
    if (!made)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for field %s", field->name);
    *made = *field;
    double *list = (double *)(made + 1);
    char *name = (char *)(list + field->count);
    if (field->list)
        memcpy(list, field->list, list_bytes);
    memcpy(name, field->name, name_bytes);
    if (field->text)
        memcpy(name + name_bytes, field->text, text_bytes);
    made->list = list;
    made->name = name;
    made->text = name + name_bytes;
    if (config->last)
        config->last->next = made;
    else
        config->first = made;
    config->last = made;
    config->count++;
    return ROPE_OK;
}

void rope_config_destroy(rope_config *config) {
    if (!config)
        return;
    for (config_field *field = config->first, *next; field; field = next) {
        next = field->next;
        free(field);
    }
    free(config);
}

rope_status rope_config_finish(rope_config *config, rope_desc *desc, rope_model *model) {
    if (!config || !desc)
        return rope_fail_null(config ? "desc" : "config");
    rope_desc made = {.struct_size = sizeof made}, full;
    rope_model shape = {.struct_size = sizeof shape};
    if (desc->struct_size >= offsetof(rope_desc, head_dim) + sizeof desc->head_dim)
        made.head_dim = desc->head_dim;
    rope_status status = rope_config_read(config, &made, &shape);
    if (status == ROPE_OK)
        status = rope_descriptor_read(&made, ROPE_MAX_HEAD_DIM, &full);
    config->finished = status == ROPE_OK;
    if (status == ROPE_OK && model)
        status = rope_abi_write(model, &shape, sizeof shape, "rope_model");
    return status == ROPE_OK ? rope_abi_write(desc, &made, sizeof made, "rope_desc") : status;
}

rope_status rope_append_config_norm(rope_config *config, rope_norm *norm) {
    rope_norm made = {0};
    if (!config || !norm)
        return rope_fail_null(config ? "norm" : "config");
    rope_status status = rope_config_read_norm(config, &made);
    if (status == ROPE_OK)
        *norm = made;
    return status;
}

/* Which layers rotate is the caller's to know, and a switch that is off says nothing. */
static int says_nothing(const config_field *field) {
    return strcmp(field->name, "no_rope_layers") == 0 ||
           strcmp(field->name, "no_rope_layer_interval") == 0 ||
           (field->scope == SCOPE_MODEL && field->kind <= FIELD_FLAG && field->number == 0) ||
           field->scope == SCOPE_KIND;
}

const char *rope_config_ignored(const rope_config *config, int32_t index) {
    if (!config || !config->finished || index < 0)
        return NULL;
    for (const config_field *field = config->first; field; field = field->next)
        if (!field->read && !field->preset && !says_nothing(field) &&
            (field->scope == SCOPE_ROPE || is_about_rope(field->name)) &&
            field == rope_config_find(config, field->scope, field->name) && index-- == 0)
            return field->name;
    return NULL;
}

rope_status rope_config_check(const rope_config *config) {
    char names[400] = "";
    size_t used = 0;
    const char *name;
    if (!config)
        return rope_fail_null("config");
    for (int32_t i = 0; (name = rope_config_ignored(config, i)) && used < sizeof names; i++)
        if (speaks_of_rope(name))
            used +=
                (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", name);
    return used ? rope_fail(ROPE_ERROR_INVALID_VALUE,
                            "nothing reads %s, which may change the rotation; allowed is none of "
                            "them, or to say that they do not matter",
                            names)
                : ROPE_OK;
}

const char *rope_config_note(const rope_config *config) {
    return config && config->finished && config->note[0] ? config->note : NULL;
}
