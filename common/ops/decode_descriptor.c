#include "common/ops/decode_descriptor.h"

#include "common/abi.h"
#include "common/names.h"
#include "common/ops/append_descriptor.h"
#include "common/ops/attention_descriptor.h"
#include "common/status.h"

_Static_assert(sizeof(rope_decode_desc) <= ROPE_MAX_STRUCT_SIZE / 2, "room for fields to come");

static rope_status read_sized(const rope_decode_desc *given, rope_decode_desc *sized) {
    static const size_t sizes[] = {sizeof *sized, sizeof sized->append, sizeof sized->append.rope};
    static const char *const names[] = {"rope_decode_desc", "rope_append_desc", "rope_desc"};
    return rope_abi_read_nested(sized, sizes, given, names);
}

/* What an append may be that has nothing to attend to. */
static rope_status check_append(const rope_append_desc *append) {
    if (append->cache == 0)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "cache is 0; allowed is ROPE_CACHE_SLOTS (1), ROPE_CACHE_TABLE (2) or "
                         "ROPE_CACHE_SEQUENCE (3)");
    if (append->k_source != ROPE_SOURCE_TENSOR)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "k_source is %s; allowed is 0 or ROPE_SOURCE_TENSOR (1) with attention",
                         rope_choice_name(rope_source_names, append->k_source).text);
    if (append->q.store_dtype != append->rope.dtype)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "q.store_dtype is %s; allowed is 0 or dtype, %s, with attention",
                         rope_choice_name(rope_dtype_names, append->q.store_dtype).text,
                         rope_choice_name(rope_dtype_names, append->rope.dtype).text);
    if (append->rope.shard != ROPE_SHARD_NONE)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "shard is %s; allowed is 0 or ROPE_SHARD_NONE with attention",
                         rope_choice_name(rope_shard_names, append->rope.shard).text);
    return ROPE_OK;
}

static rope_attention_store store_of(const rope_append_part *part, int32_t dim_block) {
    return (rope_attention_store){part->store_dtype, part->scale, dim_block};
}

/* Attention to what the append has written. */
static rope_attention_desc attention_of(const rope_decode_desc *desc, const rope_append_desc *full,
                                        int32_t table_dtype) {
    rope_attention_desc a = ROPE_ATTENTION_DESC_INIT;
    const rope_desc *rope = &full->rope;
    a.rope.dtype = rope->dtype;
    a.rope.head_dim = rope->head_dim;
    a.rope.k_head_dim = rope->k_head_dim;
    a.rope.position_dtype = rope->position_dtype;
    a.rope.device = rope->device;
    a.rope.launch = rope->launch;
    a.rope.backend = rope->backend;
    a.rotation = ROPE_ATTENTION_ROTATE_NONE;
    a.v_head_dim = full->v_head_dim;
    a.mask = desc->mask;
    a.sink_dtype = desc->sink_dtype;
    a.scale = desc->scale;
    a.soft_cap = desc->soft_cap;
    a.window = desc->window;
    a.window_right = desc->window_right;
    a.chunk = desc->chunk;
    a.cache = full->cache == ROPE_CACHE_SLOTS ? ROPE_CACHE_TABLE : full->cache;
    a.table_dtype = table_dtype;
    a.page_size = full->page_size;
    a.ring = full->ring;
    a.k = store_of(&full->k, full->k_dim_block);
    a.v = store_of(&full->v, full->v_dim_block);
    a.tuning = desc->tuning;
    return a;
}

rope_status rope_decode_descriptor_read(const rope_decode_desc *given, rope_append_desc *append,
                                        rope_attention_desc *attention) {
    rope_decode_desc sized;
    rope_status status = read_sized(given, &sized);
    if (status != ROPE_OK)
        return status;
    const int32_t table_dtype = sized.append.table_dtype;
    if (sized.append.cache == ROPE_CACHE_SLOTS)
        sized.append.table_dtype = 0; /* attention's alone */
    status = rope_append_descriptor_read(&sized.append, append);
    if (status == ROPE_OK)
        status = check_append(append);
    if (status != ROPE_OK)
        return status;
    const rope_attention_desc attended = attention_of(&sized, append, table_dtype);
    return rope_attention_descriptor_read(&attended, attention);
}
