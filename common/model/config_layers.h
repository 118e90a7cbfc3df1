/* The kinds of layers of a configuration, of which one is read. */
#ifndef ROPEKIT_COMMON_CONFIG_LAYERS_H
#define ROPEKIT_COMMON_CONFIG_LAYERS_H

#include "common/model/config_fields.h"

/* Whether layers of a kind rotate in the configuration's model, unless it says otherwise. */
int rope_layer_rotates(const rope_config *config, const char *kind);
/* The name of a kind of layer in rope_parameters. */
const char *rope_layer_label(const rope_config *config, const char *kind);
/* The model's row of a kind of layer, or NULL. */
const layer_default *rope_layer_of(const rope_config *config, const char *kind);

/* Adds a kind of layer with so many of layer_types; one that is there rotates if either says so. */
rope_status rope_config_add_kind(rope_config *config, const char *kind, int rotates, int layers);
/* Adds the model's own kinds, without those of layer_types where the configuration has any. */
rope_status rope_config_add_kinds(rope_config *config);
/* Checks layer_type, or takes full layers where those rotate, else the first kind that does. */
rope_status rope_config_choose_layer(rope_config *config);

/* Whether a name is one of rope_parameters alone, of no kind in layer_types. */
int rope_is_layer_label(const rope_config *config, const char *name);

/* Whether parameters of all layers are of the chosen one. */
int rope_layer_takes_parameters(const rope_config *config);
/* Whether a model may have parameters of all layers under a name: rope_scaling where they are of
 * any kind, rope_parameters where they are of each. */
int rope_model_takes_parameters(const rope_config *config, const char *name);

#endif
