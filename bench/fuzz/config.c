/* libFuzzer target: a config.json as text, its kinds of layers, finished into a descriptor and made
 * a plan. */
#include <ropekit/rope.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    rope_config *config = NULL;
    rope_desc desc = {.struct_size = sizeof desc, .head_dim = size % 3 ? 0 : 64};
    rope_plan *plan = NULL;
    rope_layer_kind kind = {.struct_size = sizeof kind};
    const char *layer_type = size % 2 ? "sliding_attention" : NULL;
    if (rope_config_parse(&config, (const char *)data, size, layer_type) == ROPE_OK &&
        rope_config_finish(config, &desc, NULL) == ROPE_OK) {
        for (int32_t i = 0; i < rope_config_kind_count(config); i++)
            (void)rope_config_kind_get(config, i, &kind);
        desc.dtype = desc.dtype ? desc.dtype : ROPE_F32;
        desc.backend = "cpu";
        rope_plan_create(&desc, &plan);
    }
    rope_plan_destroy(plan);
    rope_config_destroy(config);
    return 0;
}
