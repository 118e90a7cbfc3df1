/* libFuzzer target: a config.json as text, finished into a descriptor and made a plan. */
#include "bench/config_file.h"

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char error[CONFIG_ERROR_SIZE];
    rope_config *config;
    rope_desc desc = {.struct_size = sizeof desc};
    rope_plan *plan = NULL;
    if (rope_config_create(&config) != ROPE_OK)
        return 0;
    const char *layer_type = size % 2 ? "sliding_attention" : NULL;
    if (config_file_parse((const char *)data, size, config, layer_type, error) == ROPE_OK &&
        rope_config_finish(config, &desc, NULL) == ROPE_OK) {
        desc.dtype = desc.dtype ? desc.dtype : ROPE_F32;
        desc.backend = "cpu";
        rope_plan_create(&desc, &plan);
    }
    rope_plan_destroy(plan);
    rope_config_destroy(config);
    return 0;
}
