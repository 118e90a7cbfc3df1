#include "bench/config_file.h"

#include "bench/json_scan.h"

#include <cjson/cJSON.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One walk over a config. */
typedef struct walk {
    rope_config *config;
    const char *layer_type;
    char *error;
} walk;

__attribute__((format(printf, 2, 3))) static rope_status refuse(const walk *w, const char *format,
                                                                ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(w->error, CONFIG_ERROR_SIZE, format, arguments);
    va_end(arguments);
    return ROPE_ERROR_INVALID_VALUE;
}

static rope_status checked(const walk *w, rope_status status) {
    if (status != ROPE_OK)
        snprintf(w->error, CONFIG_ERROR_SIZE, "%s", rope_last_error());
    return status;
}

/* The last member of a name, which counts as it does in Python; NULL without one. */
static const cJSON *member(const cJSON *object, const char *name) {
    const cJSON *found = NULL, *item;
    cJSON_ArrayForEach(item, object) if (item->string && strcmp(item->string, name) == 0) found =
        item;
    return found;
}

static const char *type_name(const cJSON *item) {
    return cJSON_IsObject(item)   ? "an object"
           : cJSON_IsArray(item)  ? "a list"
           : cJSON_IsString(item) ? "a string"
           : cJSON_IsNumber(item) ? "a number"
           : cJSON_IsNull(item)   ? "null"
                                  : "a boolean";
}

/* The first entry of a list that is no number; NULL without one. */
static const cJSON *no_number(const cJSON *list, int *index) {
    const cJSON *entry;
    *index = 0;
    cJSON_ArrayForEach(entry, list) {
        if (!cJSON_IsNumber(entry))
            return entry;
        ++*index;
    }
    return NULL;
}

static rope_status set_list(const walk *w, const char *scope, const cJSON *list) {
    int32_t count = cJSON_GetArraySize(list);
    double *values = calloc(count ? (size_t)count : 1, sizeof *values);
    if (!values)
        return refuse(w, "no memory for the %d entries of %.60s", count, list->string);
    const cJSON *entry;
    int32_t i = 0;
    cJSON_ArrayForEach(entry, list) values[i++] = entry->valuedouble;
    rope_status status =
        checked(w, rope_config_set_list(w->config, scope, list->string, values, count));
    free(values);
    return status;
}

/* The first that is filled counts, as it does in Transformers. */
static const char *const parameter_names[] = {"rope_scaling", "rope_parameters"};

static bool is_parameters(const char *name) {
    return strcmp(name, parameter_names[0]) == 0 || strcmp(name, parameter_names[1]) == 0;
}

/* Sets one field. What holds no numbers is no field of RoPE, and an empty list where one should be.
 */
static rope_status set_field(const walk *w, const char *scope, const cJSON *item) {
    const char *name = item->string;
    int index = 0;
    const cJSON *wrong = cJSON_IsArray(item) ? no_number(item, &index) : NULL;
    if (cJSON_IsNumber(item))
        return checked(w, rope_config_set_number(w->config, scope, name, item->valuedouble));
    if (cJSON_IsBool(item))
        return checked(w, rope_config_set_number(w->config, scope, name, cJSON_IsTrue(item)));
    if (cJSON_IsString(item))
        return checked(w, rope_config_set_string(w->config, scope, name, item->valuestring));
    if (cJSON_IsArray(item) && !wrong)
        return set_list(w, scope, item);
    if (scope[0] != '\0' && wrong)
        return refuse(w, "%.60s[%d] is %s; allowed is a number", name, index, type_name(wrong));
    if (scope[0] != '\0' && !cJSON_IsNull(item))
        return refuse(w, "%.60s is %s; allowed is a number, a string or a list of numbers", name,
                      type_name(item));
    if (!cJSON_IsNull(item) && !is_parameters(name))
        return checked(w, rope_config_set_list(w->config, scope, name, NULL, 0));
    return ROPE_OK;
}

static rope_status set_fields(const walk *w, const char *scope, const cJSON *object) {
    rope_status status = ROPE_OK;
    const cJSON *item;
    cJSON_ArrayForEach(item, object) {
        status = set_field(w, scope, item);
        if (status != ROPE_OK)
            break;
    }
    return status;
}

/* Whether rope_parameters hold an object for each layer type, null for layers without RoPE. */
static bool is_by_layer(const cJSON *parameters) {
    bool found = false;
    const cJSON *item;
    cJSON_ArrayForEach(item, parameters) {
        found |= cJSON_IsObject(item);
        if (strcmp(item->string, "rope_type") == 0 || strcmp(item->string, "type") == 0 ||
            (!cJSON_IsObject(item) && !cJSON_IsNull(item)))
            return false;
    }
    return found;
}

static rope_status choose_layer(const walk *w, const cJSON *parameters, const cJSON **chosen) {
    const char *name = w->layer_type ? w->layer_type : "full_attention";
    *chosen = member(parameters, name);
    if (cJSON_IsObject(*chosen))
        return ROPE_OK;
    char names[160] = "";
    size_t used = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, parameters) {
        if (used < sizeof names)
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%.40s", used ? ", " : "",
                                     item->string);
    }
    return refuse(w, "layer type is \"%.40s\"; allowed is %s", name, names);
}

static rope_status set_parameters(const walk *w, const cJSON *parameters) {
    if (!cJSON_IsObject(parameters))
        return refuse(w, "%s is %s; allowed is an object or null", parameters->string,
                      type_name(parameters));
    const cJSON *chosen = parameters;
    if (is_by_layer(parameters)) {
        rope_status status = choose_layer(w, parameters, &chosen);
        if (status != ROPE_OK)
            return status;
    }
    if (chosen != parameters) {
        rope_status status =
            checked(w, rope_config_set_string(w->config, "rope", "layer_type", chosen->string));
        if (status != ROPE_OK)
            return status;
    }
    return set_fields(w, "rope", chosen);
}

static const cJSON *find_parameters(const cJSON *model) {
    for (int i = 0; i < 2; i++) {
        const cJSON *item = member(model, parameter_names[i]);
        int empty = cJSON_IsObject(item) && !item->child;
        if (item && !cJSON_IsNull(item) && !empty)
            return item;
    }
    return NULL;
}

static rope_status walk_rope(const walk *w, const cJSON *parameters) {
    if (w->layer_type && !(cJSON_IsObject(parameters) && is_by_layer(parameters))) {
        rope_status status =
            checked(w, rope_config_set_string(w->config, "", "layer_type", w->layer_type));
        if (status != ROPE_OK)
            return status;
    }
    return parameters ? set_parameters(w, parameters) : ROPE_OK;
}

static rope_status walk_root(walk *w, const cJSON *root) {
    if (!cJSON_IsObject(root))
        return refuse(w, "the config is %s; allowed is an object", type_name(root));
    const cJSON *text = member(root, "text_config");
    const cJSON *model = cJSON_IsObject(text) ? text : root;
    const cJSON *parameters = find_parameters(model);
    if (!parameters)
        parameters = find_parameters(root);
    rope_status status = set_fields(w, "", root);
    if (status == ROPE_OK && model != root)
        status = set_fields(w, "", model);
    return status == ROPE_OK ? walk_rope(w, parameters) : status;
}

rope_status config_file_parse(const char *text, size_t length, rope_config *config,
                              const char *layer_type, char *error) {
    walk w = {.config = config, .layer_type = layer_type, .error = error};
    const char *end = NULL;
    const size_t strange = length <= CONFIG_FILE_MOST ? json_scan(text, length) : 0;
    cJSON *root = strange == length ? cJSON_ParseWithLengthOpts(text, length, &end, 0) : NULL;
    while (root && end < text + length && strchr(" \t\r\n", *end))
        end++;
    rope_status status;
    if (strange < length)
        status =
            refuse(&w,
                   "byte %zu of %zu is 0x%02x, which may not stand there; allowed is JSON in UTF-8 "
                   "without a byte order mark and without \\u0000",
                   strange, length, (unsigned char)text[strange]);
    else if (!root)
        status = refuse(&w, "byte %zu of %zu is not JSON; allowed is one object, at most %d deep",
                        end ? (size_t)(end - text) : 0, length, CJSON_NESTING_LIMIT);
    else if (end < text + length)
        status = refuse(&w, "byte %zu of %zu is more text; allowed is one object",
                        (size_t)(end - text), length);
    else
        status = walk_root(&w, root);
    cJSON_Delete(root);
    return status;
}
