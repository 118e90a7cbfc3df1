/* What the Python package calls by name, beside libropekit's own functions. */
#include "python/csrc/descriptors.h"
#include "python/csrc/plans.h"

#include <string.h>

/* Finishes a configuration, of heads of head_dim where it states none and head_dim is not 0, and
 * writes it and its norm as text, without dtype and such a head_dim, which the tensors tell.
 * Returns the length of the whole text, or 0 on an error that rope_last_error() tells. */
ROPE_API size_t ropekit_describe_config(rope_config *config, int32_t head_dim, char *text,
                                        size_t size) {
    rope_desc desc = ROPE_DESC_INIT;
    if (rope_config_finish(config, &desc, NULL) != ROPE_OK) {
        desc.head_dim = head_dim;
        if (rope_config_finish(config, &desc, NULL) != ROPE_OK)
            return 0;
        desc.head_dim = 0;
    }
    rope_norm norm;
    if (rope_append_config_norm(config, &norm) != ROPE_OK)
        return 0;
    return config_text_print(&desc, &norm, text, size);
}

/* What is wrong with a text whatever the tensors, valid until the thread's next call, or NULL. */
ROPE_API const char *ropekit_check_text(const char *text) {
    return plan_check(text, strlen(text));
}

/* The same of attention's own fields, by which no rotation goes. */
ROPE_API const char *ropekit_check_attention(const char *text) {
    config_text config;
    rope_plan *plan = NULL;
    const char *error = config_text_parse(text, strlen(text), &config);
    rope_attention_desc *desc = &config.attention;
    desc->rope.dtype = ROPE_F32;
    desc->rope.head_dim = 8;
    desc->rope.backend = "cpu";
    desc->rotation = ROPE_ATTENTION_ROTATE_NONE;
    desc->tuning = "";
    fill_window_right(&config);
    if (!error && rope_attention_plan_create(desc, &plan) != ROPE_OK)
        error = rope_last_error();
    rope_plan_destroy(plan);
    config_text_release(&config);
    return error;
}

/* rope_frequencies of a text, whose rotary_dim is 2 * count. Returns NULL or what is wrong, valid
 * until the thread's next call. */
ROPE_API const char *ropekit_frequencies(const char *text, int32_t long_set, double *inv_freq,
                                         int32_t count, double *attention_factor) {
    config_text config;
    const char *error = config_text_parse(text, strlen(text), &config);
    config.desc.dtype = ROPE_F32;
    if (config.desc.rotary_dim == 0)
        config.desc.rotary_dim = 2 * count;
    if (config.desc.head_dim == 0)
        config.desc.head_dim = config.desc.rotary_dim;
    if (!error && rope_frequencies(&config.desc, long_set, inv_freq, count, attention_factor))
        error = rope_last_error();
    config_text_release(&config);
    return error;
}
