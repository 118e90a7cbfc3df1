/* libFuzzer target: bytes become the fields of a descriptor and of a call. */
#include "bench/fuzz/fields.h"

#include <stddef.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes b = {data, data + size};
    const rope_desc desc = fuzz_take_desc(&b, true);
    rope_args args = {.struct_size = sizeof args};
    rope_plan *plan = NULL;
    fuzz_take_args(&b, &args);
    if (fuzz_take(&b, 15) < 15)
        fuzz_drop_unread(&desc, &args);
    if (rope_plan_create(&desc, &plan) == ROPE_OK)
        rope_apply(plan, &args);
    rope_plan_destroy(plan);
    return 0;
}
