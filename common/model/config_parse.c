/* Goes over a config.json: which objects hold the fields, and which of them count. */
#define _GNU_SOURCE
#include "common/json.h"
#include "common/model/config_fields.h"
#include "common/model/config_layers.h"
#include "common/status.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct parser {
    rope_config *config;
    char *name, *text; /* of the entry at hand; room for any string of the JSON */
    int preset;        /* of the fields that are added */
} parser;

enum { PRESET_ROOM = 256 }; /* strings of model_defaults.h are shorter */

/* What a value is, for an error: scalars as they stand there. */
static void describe(const char *value, char found[64]) {
    const json_type type = rope_json_type(value);
    if (type == JSON_OBJECT || type == JSON_LIST)
        snprintf(found, 64, "%s", type == JSON_OBJECT ? "an object" : "a list");
    else
        snprintf(found, 64, "%.*s", (int)rope_json_length(value), value);
}

static rope_status refuse(const char *name, int32_t index, const char *value, const char *allowed) {
    char found[64], place[16] = "";
    describe(value, found);
    if (index >= 0)
        snprintf(place, sizeof place, "[%d]", index);
    return rope_fail(ROPE_ERROR_INVALID_VALUE, "%.60s%s is %s; allowed is %s", name, place, found,
                     allowed);
}

/* The last member of a name, which counts as it does in Python; NULL without one. */
static const char *member(const parser *p, const char *object, const char *name) {
    const char *found = NULL;
    for (json_entry e = rope_json_first(object); e.value; e = rope_json_next(e)) {
        rope_json_string(e.name, p->name);
        if (strcmp(p->name, name) == 0)
            found = e.value;
    }
    return found;
}

static int is_object(const char *value) {
    return value && rope_json_type(value) == JSON_OBJECT;
}

/* The entries of a list, and the first that is no number. */
static int32_t count_numbers(const char *list, const char **wrong) {
    int32_t count = 0;
    *wrong = NULL;
    for (json_entry e = rope_json_first(list); e.value && !*wrong; e = rope_json_next(e))
        if (rope_json_type(e.value) != JSON_NUMBER)
            *wrong = e.value;
        else if (count < INT32_MAX)
            count++;
    return count;
}

static rope_status add_list(const parser *p, config_field *field, const char *list) {
    double *values = calloc(field->count ? (size_t)field->count : 1, sizeof *values);
    if (!values)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for the %d entries of %.60s",
                         field->count, field->name);
    json_entry e = rope_json_first(list);
    for (int32_t i = 0; i < field->count; i++, e = rope_json_next(e))
        values[i] = rope_json_number(e.value);
    field->list = values;
    rope_status status = rope_config_add(p->config, field);
    free(values);
    return status;
}

/* What holds no numbers is no field of RoPE; where a model has one of that name, it stands for a
 * list without entries. */
static rope_status add_container(const parser *p, config_field *field, const char *value) {
    const char *wrong = value;
    if (rope_json_type(value) == JSON_LIST)
        field->count = count_numbers(value, &wrong);
    if (!wrong)
        return add_list(p, field, value);
    if (field->scope == SCOPE_ROPE && wrong == value)
        return refuse(field->name, -1, value, "a number, a string or a list of numbers");
    if (field->scope == SCOPE_ROPE)
        return refuse(field->name, field->count, wrong, "a number");
    field->count = 0;
    return rope_config_add(p->config, field);
}

static const char *const parameter_names[] = {"rope_scaling", "rope_parameters"};

static int is_field(int scope, const char *name) {
    return scope == SCOPE_ROPE ||
           (rope_config_takes(name) && strcmp(name, parameter_names[0]) != 0 &&
            strcmp(name, parameter_names[1]) != 0);
}

/* Whether the model names a field, be it null. */
static int is_mentioned(const rope_config *config, const char *name) {
    for (const config_field *field = config->first; field; field = field->next)
        if (field->scope == SCOPE_MODEL && strcmp(field->name, name) == 0)
            return 1;
    return 0;
}

static rope_status add_field(const parser *p, int scope, json_entry entry) {
    config_field field = {.scope = scope, .name = p->name, .preset = p->preset};
    const json_type type = rope_json_type(entry.value);
    rope_json_string(entry.name, p->name);
    if (!is_field(scope, p->name) || (type == JSON_NULL && scope == SCOPE_ROPE) ||
        (scope == SCOPE_DEFAULT && is_mentioned(p->config, p->name)))
        return ROPE_OK;
    if (type == JSON_NULL) {
        field.kind = FIELD_NULL;
        return rope_config_add(p->config, &field);
    }
    if (type == JSON_OBJECT || type == JSON_LIST) {
        field.kind = FIELD_LIST;
        return add_container(p, &field, entry.value);
    }
    if (type == JSON_STRING) {
        field.kind = FIELD_TEXT;
        field.text = p->text;
        rope_json_string(entry.value, p->text);
    } else {
        field.kind = type == JSON_NUMBER ? FIELD_NUMBER : FIELD_FLAG;
        field.number = type == JSON_NUMBER ? rope_json_number(entry.value) : type == JSON_TRUE;
    }
    return rope_config_add(p->config, &field);
}

static rope_status add_fields(const parser *p, int scope, const char *object) {
    rope_status status = ROPE_OK;
    for (json_entry e = rope_json_first(object); e.value && status == ROPE_OK;
         e = rope_json_next(e))
        status = add_field(p, scope, e);
    return status;
}

/* Whether there is an object for each layer type, null for layers without RoPE. */
static int is_by_layer(const parser *p, const char *parameters) {
    int found = 0;
    for (json_entry e = rope_json_first(parameters); e.value; e = rope_json_next(e)) {
        found |= is_object(e.value);
        rope_json_string(e.name, p->name);
        if (strcmp(p->name, "rope_type") == 0 || strcmp(p->name, "type") == 0 ||
            (!is_object(e.value) && rope_json_type(e.value) != JSON_NULL))
            return 0;
    }
    return found;
}

/* The object of rope_parameters for the kind of layer, or NULL. */
static const char *parameters_of(const parser *p, const char *parameters, const char *kind) {
    const char *found = member(p, parameters, rope_layer_label(p->config, kind));
    return is_object(found) ? found : NULL;
}

/* Kinds that layer_types lists rotate as no_rope_layers says, where both are given. */
static rope_status add_listed_kinds(const parser *p, const char *layer_types) {
    const config_field *some = rope_config_find(p->config, SCOPE_MODEL, "no_rope_layers");
    const int is_list = layer_types && rope_json_type(layer_types) == JSON_LIST;
    rope_status status = ROPE_OK;
    int32_t i = 0;
    for (json_entry e = is_list ? rope_json_first(layer_types) : (json_entry){0};
         e.value && status == ROPE_OK; e = rope_json_next(e), i++) {
        if (rope_json_type(e.value) != JSON_STRING ||
            rope_json_string(e.value, p->text) > ROPE_CONFIG_MAX_TEXT)
            continue;
        const int is_told = some && some->kind == FIELD_LIST && i < some->count;
        const int rotates = is_told ? some->list[i] != 0 : rope_layer_rotates(p->config, p->text);
        status = rope_config_add_kind(p->config, p->text, rotates, 1);
    }
    return status;
}

/* Kinds of layers that rope_parameters have an object or null for. A kind without an object rotates
 * where the model has parameters of its own for it. */
static rope_status add_kinds_by_layer(const parser *p, const char *parameters) {
    rope_status status = ROPE_OK;
    for (config_field *kind = p->config->first; kind; kind = kind->next)
        if (kind->scope == SCOPE_KIND && !parameters_of(p, parameters, kind->name) &&
            !rope_layer_of(p->config, kind->name))
            kind->number = 0;
    for (json_entry e = rope_json_first(parameters); e.value && status == ROPE_OK;
         e = rope_json_next(e)) {
        if (rope_json_string(e.name, p->text) <= ROPE_CONFIG_MAX_TEXT)
            status = rope_config_add_kind(p->config, p->text, is_object(e.value), 0);
    }
    return status;
}

static rope_status add_preset(parser *p, int scope, const char *object) {
    p->preset = 1;
    rope_status status = object ? add_fields(p, scope, object) : ROPE_OK;
    p->preset = 0;
    return status;
}

/* The parameters of the layer: those of its kind, those of all layers, or the model's own. */
static rope_status add_parameters(parser *p, const char *name, const char *parameters) {
    rope_config *config = p->config;
    const layer_default *own = config->layer;
    const char *given = config->by_layer ? parameters_of(p, parameters, config->layer_type)
                        : parameters && rope_layer_takes_parameters(config) ? parameters
                                                                            : NULL;
    if (parameters && !config->by_layer && own && !rope_model_takes_parameters(config, name))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "%s is of all layers; allowed is an object for each kind of layer", name);
    if (given)
        return add_fields(p, SCOPE_ROPE, given);
    return add_preset(p, SCOPE_ROPE, own ? own->parameters : NULL);
}

static int is_filled(const char *value) {
    return value && rope_json_type(value) != JSON_NULL &&
           !(is_object(value) && !rope_json_first(value).value);
}

/* Whether two values say the same; members of objects in the same order. */
static int is_same(const char *a, const char *b) {
    const json_type type = rope_json_type(a);
    if (type != rope_json_type(b))
        return 0;
    if (type == JSON_NUMBER)
        return rope_json_number(a) == rope_json_number(b);
    if (type != JSON_OBJECT && type != JSON_LIST)
        return rope_json_length(a) == rope_json_length(b) && memcmp(a, b, rope_json_length(a)) == 0;
    json_entry x = rope_json_first(a), y = rope_json_first(b);
    for (; x.value && y.value; x = rope_json_next(x), y = rope_json_next(y))
        if ((x.name && !is_same(x.name, y.name)) || !is_same(x.value, y.value))
            return 0;
    return !x.value && !y.value;
}

/* The filled one of both names, or NULL. */
static rope_status find_parameters(const parser *p, const char *model, const char **name,
                                   const char **found) {
    const char *values[2];
    *found = NULL;
    for (int i = 1; i >= 0; i--) {
        values[i] = member(p, model, parameter_names[i]);
        if (!is_filled(values[i]))
            continue;
        if (!is_object(values[i]))
            return refuse(parameter_names[i], -1, values[i], "an object or null");
        *found = values[i];
        *name = parameter_names[i];
    }
    if (is_filled(values[0]) && is_filled(values[1]) && !is_same(values[0], values[1]))
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "rope_scaling and rope_parameters are given; allowed is one of them, or "
                         "the same in both");
    return ROPE_OK;
}

/* The object under names with dots between them, or NULL. */
static const char *object_at(const parser *p, const char *object, const char *path) {
    while (path && is_object(object)) {
        const size_t length = strcspn(path, ".");
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)length, path);
        object = member(p, object, name);
        path = path[length] ? path + length + 1 : NULL;
    }
    return is_object(object) ? object : NULL;
}

static const model_default *model_of(const parser *p, const char *object, const char *instead) {
    const char *type = member(p, object, "model_type");
    const int is_text = type && rope_json_type(type) == JSON_STRING;
    if (is_text)
        rope_json_string(type, p->text);
    return is_text ? rope_model_default(p->text) : instead ? rope_model_default(instead) : NULL;
}

/* The part of a configuration of several models that has the text's fields, else all of it; and
 * what Transformers takes for its model. */
static const char *find_model(const parser *p, const char *root) {
    rope_config *config = p->config;
    const model_default *whole = model_of(p, root, NULL);
    const char *text = object_at(p, root, whole && whole->text_path ? whole->text_path : "");
    if (!text)
        text = object_at(p, root, "text_config");
    if (text && whole && whole->text_path && !whole->text_type)
        config->model = whole;
    else if (text)
        config->model = model_of(p, text,
                                 whole && whole->text_type ? whole->text_type
                                 : whole                   ? whole->model_type
                                                           : NULL);
    else
        config->model = whole && whole->text_type && !whole->fields
                            ? rope_model_default(whole->text_type)
                            : whole;
    return text ? text : root;
}

/* Of what a layer has for itself, as Transformers saves it, what its heads are. */
static rope_status add_head_fields(const parser *p, const char *layer) {
    rope_status status = ROPE_OK;
    for (json_entry e = rope_json_first(layer); e.value && status == ROPE_OK;
         e = rope_json_next(e)) {
        rope_json_string(e.name, p->name);
        if (strcmp(p->name, "head_dim") == 0 || strcmp(p->name, "num_key_value_heads") == 0)
            status = add_field(p, SCOPE_MODEL, e);
    }
    return status;
}

static const char own_fields[] = "per_layer_config";

/* Those of the first layer of the chosen kind that has any. */
static rope_status add_own_fields(const parser *p, const char *model) {
    const char *each = object_at(p, model, own_fields), *types = member(p, model, "layer_types");
    if (!each || !types || rope_json_type(types) != JSON_LIST)
        return ROPE_OK;
    for (json_entry layer = rope_json_first(each); layer.value; layer = rope_json_next(layer)) {
        rope_json_string(layer.name, p->name);
        long left = strtol(p->name, NULL, 10);
        json_entry type = rope_json_first(types);
        for (; type.value && left > 0; left--)
            type = rope_json_next(type);
        if (!type.value || left < 0 || rope_json_type(type.value) != JSON_STRING ||
            !is_object(layer.value))
            continue;
        rope_json_string(type.value, p->text);
        if (strcmp(p->text, p->config->layer_type) == 0)
            return add_head_fields(p, layer.value);
    }
    return ROPE_OK;
}

/* Layers that have fields for themselves leave nothing to the model's class. */
static rope_status add_no_global_fields(const parser *p, const char *model) {
    static const char *const names[] = {"global_head_dim", "num_global_key_value_heads"};
    rope_status status = ROPE_OK;
    for (int i = 0; i < 2 && object_at(p, model, own_fields) && status == ROPE_OK; i++) {
        const config_field none = {.scope = SCOPE_MODEL, .kind = FIELD_NULL, .name = names[i]};
        status = rope_config_add(p->config, &none);
    }
    return status;
}

static rope_status add_model(parser *p, const char *root, const char *model) {
    const char *attention = object_at(p, model, "attn_config"); /* DBRX, MPT */
    rope_status status = attention ? add_fields(p, SCOPE_MODEL, attention) : ROPE_OK;
    if (status == ROPE_OK)
        status = add_fields(p, SCOPE_MODEL, root);
    if (status == ROPE_OK && model != root)
        status = add_fields(p, SCOPE_MODEL, model);
    if (status == ROPE_OK)
        status = add_no_global_fields(p, model);
    if (status == ROPE_OK && p->config->model)
        status = add_preset(p, SCOPE_DEFAULT, p->config->model->fields);
    return status;
}

static rope_status parse_root(parser *p, const char *root) {
    if (!is_object(root))
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "the config is %s; allowed is an object",
                         *root == '[' ? "a list" : "a single value");
    rope_config *config = p->config;
    const char *model = find_model(p, root), *name = NULL, *parameters = NULL;
    rope_status status = find_parameters(p, model, &name, &parameters);
    if (status == ROPE_OK && !parameters)
        status = find_parameters(p, root, &name, &parameters);
    if (status == ROPE_OK)
        status = add_model(p, root, model);
    config->by_layer = status == ROPE_OK && parameters && is_by_layer(p, parameters);
    if (status == ROPE_OK)
        status = add_listed_kinds(p, member(p, model, "layer_types"));
    if (status == ROPE_OK)
        status = rope_config_add_kinds(config);
    if (status == ROPE_OK && config->by_layer)
        status = add_kinds_by_layer(p, parameters);
    if (status == ROPE_OK)
        status = rope_config_choose_layer(config);
    if (status == ROPE_OK)
        status = add_own_fields(p, model);
    return status == ROPE_OK ? add_parameters(p, name, parameters) : status;
}

/* In a locale whose numbers are those of JSON. */
static rope_status parse_in_c_locale(parser *p, const char *root) {
    locale_t c = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    if (!c)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for the locale C");
    locale_t own = uselocale(c);
    rope_status status = parse_root(p, root);
    freelocale(uselocale(own));
    return status;
}

static rope_status parse(rope_config *config, const char *json, size_t length) {
    const char *root;
    rope_status status = rope_json_check(json, length, &root);
    if (status != ROPE_OK)
        return status;
    char *strings = malloc(2 * (length + PRESET_ROOM));
    if (!strings)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for a configuration");
    parser p = {config, strings, strings + length + PRESET_ROOM, 0};
    status = parse_in_c_locale(&p, root);
    free(strings);
    return status;
}

rope_status rope_config_parse(rope_config **config, const char *json, size_t length,
                              const char *layer_type) {
    if (!config || !json)
        return rope_fail_null(config ? "json" : "config");
    if (layer_type && strlen(layer_type) > ROPE_CONFIG_MAX_TEXT)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "layer_type is \"%.40s...\" of %zu characters; allowed is 0..%d",
                         layer_type, strlen(layer_type), ROPE_CONFIG_MAX_TEXT);
    rope_config *made = calloc(1, sizeof *made);
    if (!made)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for a configuration");
    if (layer_type)
        strcpy(made->layer_type, layer_type);
    rope_status status = parse(made, json, length);
    if (status == ROPE_OK)
        *config = made;
    else
        rope_config_destroy(made);
    return status;
}
