/* The fields of a Hugging Face configuration, and what a descriptor takes from them. */
#ifndef ROPEKIT_COMMON_CONFIG_FIELDS_H
#define ROPEKIT_COMMON_CONFIG_FIELDS_H

#include <ropekit/append.h>

#include <string.h>

enum { ROPE_CONFIG_MAX_TEXT = 128 };
/* Fields of the model, of rope_parameters, and of the model where it leaves them out; SCOPE_KIND
 * has a flag for each kind of layer: whether it rotates. */
enum { SCOPE_MODEL = 1, SCOPE_ROPE = 2, SCOPE_DEFAULT = 4, SCOPE_KIND = 8 };
typedef enum field_kind { FIELD_NUMBER, FIELD_FLAG, FIELD_TEXT, FIELD_LIST, FIELD_NULL } field_kind;

/* The last of a name counts that is not FIELD_NULL. FIELD_FLAG has the number 0 or 1; FIELD_LIST
 * without entries stands for what holds no numbers. A preset field is the model's own. */
typedef struct config_field {
    struct config_field *next;
    int scope, read, preset;
    field_kind kind;
    const char *name, *text;
    const double *list;
    double number;
    int32_t count;
    int32_t layers,
        unrotated; /* of SCOPE_KIND: entries of layer_types, and of those without RoPE */
} config_field;

/* What Transformers takes for a model_type; text_path is where a configuration of several models
 * has the text's, and text_type its model_type where it states none; NULL where the row's own
 * defaults are the text's, whatever its model_type. Such a row has no fields unless its text's
 * defaults are its own. */
typedef struct model_default {
    const char *model_type, *text_path, *text_type;
    const char *kinds, *fields; /* kinds of layers; an object in JSON */
} model_default;

/* The same for a kind of layer, "" where all are alike. */
typedef struct layer_default {
    const char *model_type, *layer;
    const char *base_name;  /* the model's field that gives the base, or NULL */
    double base, share;     /* without it; partial_rotary_factor, 0: the whole head */
    int takes_parameters;   /* rope_parameters that are of all layers are this one's too */
    const char *parameters; /* without any, in JSON; NULL: it does not rotate */
} layer_default;

struct rope_config {
    config_field *first, *last;
    int32_t count;
    int finished;
    const model_default *model;                /* NULL: not known */
    const layer_default *layer;                /* the model's row of the kind that was asked for */
    char model_type[ROPE_CONFIG_MAX_TEXT + 1]; /* of the text, without "_text" */
    char layer_type[ROPE_CONFIG_MAX_TEXT + 1]; /* empty: none was asked for, nor is there any */
    int by_layer;   /* rope_parameters hold an object for each layer type */
    char note[256]; /* of the last rope_config_finish */
};

/* Whether anything depends on a model's field of that name. */
int rope_config_takes(const char *name);
/* Appends a copy of a field. */
rope_status rope_config_add(rope_config *config, const config_field *field);

/* The field that counts, or NULL. */
static inline config_field *rope_config_find(const rope_config *config, int scope,
                                             const char *name) {
    config_field *found = NULL;
    for (config_field *field = config->first; field; field = field->next)
        if (field->scope == scope && field->kind != FIELD_NULL && strcmp(field->name, name) == 0)
            found = field;
    return found;
}

/* What a field holds, for a text that says what is wrong with it. */
void rope_config_describe(const config_field *field, char *text, size_t size);

/* The row of a model_type, or NULL. */
const model_default *rope_model_default(const char *model_type);
/* The first row of its layers, and the next one; NULL past the last. */
const layer_default *rope_layer_default(const model_default *model, const layer_default *last);
/* Whether Transformers' model of that type rotates nothing. */
int rope_model_is_unrotated(const char *model_type);

/* Fills a descriptor and a model, which hold 0 but for the head_dim of a config that states none,
 * and marks what it reads. */
rope_status rope_config_read(rope_config *config, rope_desc *desc, rope_model *model);
/* Fills a norm, which holds 0, with that of q and k where the model_type's is known. */
rope_status rope_config_read_norm(rope_config *config, rope_norm *norm);

#endif
