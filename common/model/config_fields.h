/* The fields of a Hugging Face configuration, and what a descriptor takes from them. */
#ifndef ROPEKIT_COMMON_CONFIG_FIELDS_H
#define ROPEKIT_COMMON_CONFIG_FIELDS_H

#include <ropekit/append.h>

#include <string.h>

enum { ROPE_CONFIG_MAX_TEXT = 128 };
enum { SCOPE_MODEL = 1, SCOPE_ROPE = 2 };
typedef enum field_kind { FIELD_NUMBER, FIELD_FLAG, FIELD_TEXT, FIELD_LIST } field_kind;

/* The last of a name counts. FIELD_FLAG has the number 0 or 1; FIELD_LIST without entries stands
 * for what holds no numbers. */
typedef struct config_field {
    struct config_field *next;
    int scope, read;
    field_kind kind;
    const char *name, *text;
    const double *list;
    double number;
    int32_t count;
} config_field;

struct rope_config {
    config_field *first, *last;
    int32_t count;
    int finished;
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
        if (field->scope == scope && strcmp(field->name, name) == 0)
            found = field;
    return found;
}

/* Fills a descriptor and a model, which hold 0 but for the head_dim of a config that states none,
 * and marks what it reads. */
rope_status rope_config_read(rope_config *config, rope_desc *desc, rope_model *model);
/* Fills a norm, which holds 0, with that of q and k where the model_type's is known. */
rope_status rope_config_read_norm(rope_config *config, rope_norm *norm);

#endif
