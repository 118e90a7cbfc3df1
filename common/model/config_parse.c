/* Goes over a config.json: which objects hold the fields, and which of them count. */
#define _GNU_SOURCE
#include "common/json.h"
#include "common/model/config_fields.h"
#include "common/status.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct parser {
    rope_config *config;
    char *name, *text; /* of the entry at hand; room for any string of the JSON */
} parser;

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

/* The first that is filled counts, as it does in Transformers. */
static const char *const parameter_names[] = {"rope_scaling", "rope_parameters"};

static int is_field(int scope, const char *name) {
    return scope == SCOPE_ROPE ||
           (rope_config_takes(name) && strcmp(name, parameter_names[0]) != 0 &&
            strcmp(name, parameter_names[1]) != 0);
}

static rope_status add_field(const parser *p, int scope, json_entry entry) {
    config_field field = {.scope = scope, .name = p->name};
    const json_type type = rope_json_type(entry.value);
    rope_json_string(entry.name, p->name);
    if (type == JSON_NULL || !is_field(scope, p->name))
        return ROPE_OK;
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

static rope_status refuse_layer(const parser *p, const char *parameters) {
    char names[160] = "";
    size_t used = 0;
    for (json_entry e = rope_json_first(parameters); e.value; e = rope_json_next(e)) {
        rope_json_string(e.name, p->name);
        if (is_object(e.value) && used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%.40s", used ? ", " : "",
                                     p->name);
    }
    return rope_fail(ROPE_ERROR_INVALID_VALUE, "layer_type is \"%.40s\"; allowed is %s",
                     p->config->layer_type, names);
}

static rope_status add_parameters(const parser *p, const char *name, const char *parameters) {
    rope_config *config = p->config;
    if (!is_object(parameters))
        return refuse(name, -1, parameters, "an object or null");
    config->by_layer = is_by_layer(p, parameters);
    if (!config->by_layer)
        return add_fields(p, SCOPE_ROPE, parameters);
    if (config->layer_type[0] == '\0')
        strcpy(config->layer_type, "full_attention");
    const char *layer = member(p, parameters, config->layer_type);
    return is_object(layer) ? add_fields(p, SCOPE_ROPE, layer) : refuse_layer(p, parameters);
}

static const char *find_parameters(const parser *p, const char *model, const char **name) {
    for (int i = 0; i < 2; i++) {
        const char *value = member(p, model, parameter_names[i]);
        *name = parameter_names[i];
        if (value && rope_json_type(value) != JSON_NULL &&
            !(is_object(value) && !rope_json_first(value).value))
            return value;
    }
    return NULL;
}

static rope_status parse_root(const parser *p, const char *root) {
    if (!is_object(root))
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "the config is %s; allowed is an object",
                         *root == '[' ? "a list" : "a single value");
    const char *text = member(p, root, "text_config"), *name;
    const char *model = is_object(text) ? text : root;
    const char *parameters = find_parameters(p, model, &name);
    if (!parameters)
        parameters = find_parameters(p, root, &name);
    rope_status status = add_fields(p, SCOPE_MODEL, root);
    if (status == ROPE_OK && model != root)
        status = add_fields(p, SCOPE_MODEL, model);
    return status == ROPE_OK && parameters ? add_parameters(p, name, parameters) : status;
}

/* In a locale whose numbers are those of JSON. */
static rope_status parse_in_c_locale(const parser *p, const char *root) {
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
    char *strings = malloc(2 * (length + 1));
    if (!strings)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for a configuration");
    const parser p = {config, strings, strings + length + 1};
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
