/* The kinds of layers of a configuration as a caller sees them. */
#include "common/abi.h"
#include "common/model/config_layers.h"
#include "common/status.h"

#include <math.h>

static const config_field *find(const rope_config *config, const char *name) {
    const config_field *field = rope_config_find(config, SCOPE_MODEL, name);
    return field ? field : rope_config_find(config, SCOPE_DEFAULT, name);
}

/* A number of tokens; 0 where there is none. */
static rope_status read_tokens(const rope_config *config, const char *name, int64_t *tokens) {
    const config_field *field = find(config, name);
    *tokens = 0;
    if (!field)
        return ROPE_OK;
    const double value = field->kind == FIELD_NUMBER ? field->number : -1;
    char found[100];
    rope_config_describe(field, found, sizeof found);
    if (!(value >= 0 && value <= 0x1p53 && value == floor(value)))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s is %s; allowed is a whole number in 0..2^53, or null", name, found);
    *tokens = (int64_t)value;
    return ROPE_OK;
}

/* Where all layers are alike, a switch may turn it off. */
static int has_window(const rope_config *config, const char *kind) {
    const config_field *on = find(config, "use_sliding_window");
    if (kind[0] == '\0')
        return !(on && on->kind == FIELD_FLAG && on->number == 0);
    return strstr(kind, "sliding") || strstr(kind, "compressed");
}

static rope_status read_window(const rope_config *config, const char *kind, int64_t *window) {
    *window = 0;
    if (!has_window(config, kind))
        return ROPE_OK;
    rope_status status = read_tokens(config, "sliding_window", window);
    if (status == ROPE_OK && *window == 0) /* RecurrentGemma */
        status = read_tokens(config, "attention_window_size", window);
    if (status == ROPE_OK && *window == 0) { /* ModernBERT: both ways together */
        status = read_tokens(config, "local_attention", window);
        *window /= 2;
    }
    return status;
}

/* The index-th, or NULL. */
static const config_field *kind_at(const rope_config *config, int32_t index) {
    const config_field *field = config->first;
    for (; field; field = field->next)
        if (field->scope == SCOPE_KIND && !rope_is_layer_label(config, field->name) && index-- == 0)
            return field;
    return NULL;
}

int32_t rope_config_kind_count(const rope_config *config) {
    int32_t count = 0;
    while (config && kind_at(config, count))
        count++;
    return config && count == 0 ? 1 : count;
}

rope_status rope_config_kind_get(const rope_config *config, int32_t index, rope_layer_kind *kind) {
    if (!config || !kind)
        return rope_fail_null(config ? "kind" : "config");
    const int32_t count = rope_config_kind_count(config);
    if (index < 0 || index >= count)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "index is %d; allowed is 0..%d", index,
                         count - 1);
    const config_field *field = kind_at(config, index);
    rope_layer_kind made = {.struct_size = sizeof made, .name = "", .rotates = 1};
    if (field) {
        made.name = field->name;
        made.rotates = field->number != 0;
        made.layers = field->layers;
        made.unrotated = made.rotates ? field->unrotated : field->layers;
    }
    rope_status status = read_window(config, made.name, &made.window);
    if (status == ROPE_OK && (!field || strcmp(made.name, "chunked_attention") == 0))
        status = read_tokens(config, "attention_chunk_size", &made.chunk);
    return status == ROPE_OK ? rope_abi_write(kind, &made, sizeof made, "rope_layer_kind") : status;
}
