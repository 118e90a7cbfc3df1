#include "common/model/config_layers.h"
#include "common/status.h"

#include <stdio.h>
#include <string.h>

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

/* Kinds of layers that do not rotate; some do where the model has no sliding_window. */
typedef struct model_unrotated_kind {
    const char *model_type, *kind;
    int unless_no_window;
} model_unrotated_kind;

static const model_unrotated_kind model_unrotated_kinds[] = {
    {"afmoe", "full_attention", 0},
    {"cohere2", "full_attention", 0},
    {"cohere2_moe", "full_attention", 0},
    {"exaone4", "full_attention", 1},
    {"exaone_moe", "full_attention", 1},
    {"flint", "full_attention", 0},
    {"kolibri1", "full_attention", 1},
    {"llama4_text", "full_attention", 0},
    {"muse_glimmer_text", "full_attention", 0},
    {"muse_spark_text", "full_attention", 0},
    {"smollm3", "sliding_attention", 0},
};

/* Kinds of layers that have another name in rope_parameters. */
typedef struct model_layer_label {
    const char *model_type, *kind, *label;
} model_layer_label;

static const model_layer_label model_layer_labels[] = {
    {"deepseek_v4", "compressed_sparse_attention", "compress"},
    {"deepseek_v4", "heavily_compressed_attention", "compress"},
    {"deepseek_v4", "sliding_attention", "main"},
};

static const char full[] = "full_attention", sliding[] = "sliding_attention";

int rope_layer_rotates(const rope_config *config, const char *kind) {
    static const char *const mixers[] = {"conv", "linear_attention", "mamba", "mlp", "moe"};
    for (size_t i = 0; i < COUNT(mixers); i++)
        if (strcmp(mixers[i], kind) == 0)
            return 0;
    const layer_default *own = rope_layer_of(config, kind);
    if (own && !own->parameters)
        return 0;
    for (size_t i = 0; config->model && i < COUNT(model_unrotated_kinds); i++) {
        const model_unrotated_kind *row = &model_unrotated_kinds[i];
        if (strcmp(row->model_type, config->model->model_type) == 0 && strcmp(row->kind, kind) == 0)
            return row->unless_no_window &&
                   !rope_config_find(config, SCOPE_MODEL, "sliding_window") &&
                   !rope_config_find(config, SCOPE_DEFAULT, "sliding_window");
    }
    return 1;
}

const char *rope_layer_label(const rope_config *config, const char *kind) {
    for (size_t i = 0; config->model && i < COUNT(model_layer_labels); i++)
        if (strcmp(model_layer_labels[i].model_type, config->model->model_type) == 0 &&
            strcmp(model_layer_labels[i].kind, kind) == 0)
            return model_layer_labels[i].label;
    return kind;
}

const layer_default *rope_layer_of(const rope_config *config, const char *kind) {
    const layer_default *row = NULL;
    const char *label = rope_layer_label(config, kind);
    while ((row = rope_layer_default(config->model, row)))
        if (row->layer[0] == '\0' || strcmp(row->layer, label) == 0)
            return row;
    return NULL;
}

int rope_is_layer_label(const rope_config *config, const char *name) {
    for (size_t i = 0; config->model && i < COUNT(model_layer_labels); i++)
        if (strcmp(model_layer_labels[i].model_type, config->model->model_type) == 0 &&
            strcmp(model_layer_labels[i].label, name) == 0)
            return 1;
    return 0;
}

rope_status rope_config_add_kind(rope_config *config, const char *kind, int rotates, int layers) {
    config_field *known = rope_config_find(config, SCOPE_KIND, kind);
    const int unrotated = rotates ? 0 : layers;
    if (known) {
        known->number = known->number != 0 || rotates;
        known->layers += layers;
        known->unrotated += unrotated;
        return ROPE_OK;
    }
    const config_field field = {.scope = SCOPE_KIND,
                                .kind = FIELD_FLAG,
                                .name = kind,
                                .number = rotates,
                                .layers = layers,
                                .unrotated = unrotated};
    return rope_config_add(config, &field);
}

/* The first kind that rotates, from a field on. */
static const config_field *rotating(const config_field *field) {
    while (field && !(field->scope == SCOPE_KIND && field->number != 0))
        field = field->next;
    return field;
}

/* Without a row: fields as those of Gemma 3 and ModernBERT have bases for two kinds of layers. */
static int has_two_bases(const rope_config *config) {
    static const char *const names[] = {"rope_local_base_freq", "local_rope_theta",
                                        "global_rope_theta"};
    for (size_t i = 0; !config->model && i < COUNT(names); i++)
        if (rope_config_find(config, SCOPE_MODEL, names[i]))
            return 1;
    return 0;
}

static rope_status add_class_kinds(rope_config *config, const char *kinds) {
    rope_status status = ROPE_OK;
    while (kinds && *kinds && status == ROPE_OK) {
        const size_t length = strcspn(kinds, " ");
        char kind[ROPE_CONFIG_MAX_TEXT + 1];
        snprintf(kind, sizeof kind, "%.*s", (int)length, kinds);
        status = rope_config_add_kind(config, kind, rope_layer_rotates(config, kind), 0);
        kinds += length + (kinds[length] == ' ');
    }
    return status;
}

/* A switch that is off by default gives some layers a window. */
static int adds_windows(const rope_config *config) {
    const config_field *on = rope_config_find(config, SCOPE_MODEL, "use_sliding_window");
    return on && on->kind <= FIELD_FLAG && on->number != 0;
}

rope_status rope_config_add_kinds(rope_config *config) {
    const model_default *model = config->model;
    const layer_default *row = NULL;
    rope_status status = ROPE_OK;
    int listed = 0;
    for (const config_field *field = config->first; field; field = field->next)
        listed |= field->scope == SCOPE_KIND;
    if (!listed && model && model->kinds) {
        status = add_class_kinds(config, model->kinds);
        if (status == ROPE_OK && !rotating(config->first)) /* attention is among other layers */
            status = rope_config_add_kind(config, full, 1, 0);
        if (status == ROPE_OK && adds_windows(config)) /* Qwen 2, from max_window_layers on */
            status = rope_config_add_kind(config, sliding, rope_layer_rotates(config, sliding), 0);
    }
    while (status == ROPE_OK && (row = rope_layer_default(model, row)))
        if (row->layer[0])
            status = rope_config_add_kind(config, row->layer, row->parameters != NULL, 0);
    if (status == ROPE_OK && has_two_bases(config))
        status = rope_config_add_kind(config, full, 1, 0);
    if (status == ROPE_OK && has_two_bases(config))
        status = rope_config_add_kind(config, sliding, 1, 0);
    return status;
}

static int has_kinds(const rope_config *config) {
    const config_field *field = config->first;
    while (field && field->scope != SCOPE_KIND)
        field = field->next;
    return field != NULL;
}

static rope_status refuse_layer(const rope_config *config, const config_field *asked) {
    char names[200] = "";
    size_t used = 0;
    for (const config_field *kind = config->first; (kind = rotating(kind)); kind = kind->next)
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%.40s", used ? ", " : "",
                                     kind->name);
    return rope_fail(ROPE_ERROR_INVALID_VALUE, "layer_type is \"%.40s\"%s; allowed is %s",
                     config->layer_type, asked ? ", whose layers do not rotate" : "",
                     used                ? names
                     : has_kinds(config) ? "none, as no layer rotates"
                                         : "none, as all layers are alike");
}

rope_status rope_config_choose_layer(rope_config *config) {
    const config_field *kind =
        rope_config_find(config, SCOPE_KIND, config->layer_type[0] ? config->layer_type : full);
    if (config->layer_type[0] && !(kind && kind->number != 0))
        return refuse_layer(config, kind);
    if (!(kind && kind->number != 0))
        kind = rotating(config->first);
    if (kind)
        strcpy(config->layer_type, kind->name);
    config->layer = rope_layer_of(config, config->layer_type);
    return ROPE_OK;
}

int rope_layer_takes_parameters(const rope_config *config) {
    if (config->layer)
        return config->layer->takes_parameters;
    return !(has_two_bases(config) && strcmp(config->layer_type, sliding) == 0);
}

int rope_model_takes_parameters(const rope_config *config, const char *name) {
    const layer_default *row = NULL;
    int rows = 0, takers = 0;
    while ((row = rope_layer_default(config->model, row))) {
        rows++;
        takers += row->takes_parameters;
    }
    return !config->model || (strcmp(name, "rope_scaling") == 0 ? takers > 0 : takers == rows);
}
