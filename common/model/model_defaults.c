#include "common/model/model_defaults.h"

#include <string.h>

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

const model_default *rope_model_default(const char *model_type) {
    for (size_t i = 0; i < COUNT(model_defaults); i++)
        if (strcmp(model_defaults[i].model_type, model_type) == 0)
            return &model_defaults[i];
    return NULL;
}

const layer_default *rope_layer_default(const model_default *model, const layer_default *last) {
    const layer_default *end = layer_defaults + COUNT(layer_defaults);
    for (const layer_default *row = last ? last + 1 : layer_defaults; model && row < end; row++)
        if (strcmp(row->model_type, model->model_type) == 0)
            return row;
    return NULL;
}

int rope_model_is_unrotated(const char *model_type) {
    for (size_t i = 0; i < COUNT(models_without_rotation); i++)
        if (strcmp(models_without_rotation[i], model_type) == 0)
            return 1;
    return 0;
}
