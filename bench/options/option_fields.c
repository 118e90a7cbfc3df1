#include "bench/options/option_fields.h"

#include "bench/options/options.h"

/* Commands that take a descriptor, and those that take a call's shape. */
#define ALL (DESCRIBED | COMMAND_TUNE)
#define DESCRIBED (COMMAND_INFO | CALLED)
#define CALLED (COMMAND_VERIFY | COMMAND_BENCH | COMMAND_DEMO)
#define RANGE32 INT32_MIN, INT32_MAX
#define COUNT32 1, INT32_MAX /* of fields whose 0 means "not given" */
#define COUNT64 1, INT64_MAX
#define SIZES 0, INT32_MAX
#define ANY64 INT64_MIN, INT64_MAX

#define FIELD(name, kind, commands, member, values, ...)                                           \
    { name, OPTION_##kind, GROUP, commands, offsetof(options, member), values, __VA_ARGS__ }
#define CHOICE(name, commands, member, values, help)                                               \
    FIELD(name, CHOICE, commands, member, values, 0, 0, help)
#define INT32(name, member, range, help)                                                           \
    FIELD(name, INT32, DESCRIBED, desc.member, "N", range, help)
#define INT64(name, member, range, help)                                                           \
    FIELD(name, INT64, DESCRIBED, desc.member, "N", range, help)
#define REAL(name, member, help) FIELD(name, DOUBLE, DESCRIBED, desc.member, "X", 0, 0, help)
#define FLAG(name, commands, member, help) FIELD(name, FLAG, commands, member, NULL, 0, 0, help)
#define TEXT(name, commands, member, word, help)                                                   \
    FIELD(name, TEXT, commands, member, word, 0, 0, help)

/* What is done with q, k or v, as rope_append_part names it. */
#define PART(part)                                                                                 \
    CHOICE(#part "-norm-type", CALLED, appends.part.norm.type, "rms|layer", "norm of " #part),     \
        CHOICE(#part "-norm-scope", CALLED, appends.part.norm.scope, "head|token",                 \
               "elements of one norm"),                                                            \
        FIELD(#part "-norm-offset", INT32, CALLED, appends.part.norm.offset, "N", RANGE32,         \
              "first element of a head that is normalised"),                                       \
        FIELD(#part "-norm-dim", INT32, CALLED, appends.part.norm.dim, "N", COUNT32,               \
              "elements of a head that are"),                                                      \
        CHOICE(#part "-norm-weight", CALLED, appends.part.norm.weight, "weight|one-plus-weight",   \
               "factor of a normalised element"),                                                  \
        CHOICE(#part "-norm-weight-dtype", CALLED, appends.part.norm.weight_dtype, "f32|f16|bf16", \
               "type of weights [dtype]"),                                                         \
        CHOICE(#part "-norm-rounding", CALLED, appends.part.norm.rounding, "once|twice",           \
               "behind the weight, or ahead of it too"),                                           \
        FIELD(#part "-norm-eps", DOUBLE, CALLED, appends.part.norm.eps, "X", 0, 0,                 \
              "added to the mean square"),                                                         \
        FIELD(#part "-factor", DOUBLE, CALLED, appends.part.factor, "X", 0, 0,                     \
              "multiplies " #part " last"),                                                        \
        FIELD(#part "-store-dtype", DTYPE, CALLED, appends.part.store_dtype,                       \
              "f32|f16|bf16|f8e4m3|f8e5m2|f8e4m3fnuz|i8", 0, 0, "as stored [dtype]"),              \
        CHOICE(#part "-scale", CALLED, appends.part.scale,                                         \
               "tensor|head|token-head|token-head-max", "scale of what has 8 bits")

const char *const option_group_names[OPTION_GROUPS] = {"Run",
                                                       "Model",
                                                       "Case",
                                                       "Tensors",
                                                       "Frequencies",
                                                       "Positions",
                                                       "Angles and tables",
                                                       "Cache, for append and attention",
                                                       "Append",
                                                       "Attention"};

const option_field option_fields[] = {
#define GROUP OPTION_RUN
    FLAG("help", ALL, help, "print this text"),
    TEXT("suite", COMMAND_BENCH, suite, "NAME", "a named list of cases, or all"),
    FLAG("list", COMMAND_BENCH, list, "print the cases and measure none"),
    FLAG("quick", COMMAND_BENCH | COMMAND_DEMO | COMMAND_TUNE, quick, "fewer rounds and sizes"),
    FIELD("rounds", INT64, COMMAND_BENCH | COMMAND_TUNE, rounds, "N", 1, OPTIONS_ROUNDS_MOST,
          "rounds of a measurement [15, tune 5 or 7], <= 1000"),
    TEXT("backend", ALL, desc.backend, "NAME", "backend, comma list in order, or auto"),
    FIELD("device", INT32, ALL, desc.device, "N", 0, INT32_MAX, "index of the backend's device"),
    FIELD("threads", INT64, ALL, threads, "N", 1, OPTIONS_THREADS_MOST, "OpenMP threads"),
    FIELD("seed", INT64, ALL, seed, "N", 0, INT64_MAX, "seed of the data [1]"),
    FLAG("json", DESCRIBED, json, "print results as JSON"),
    TEXT("output", ALL, output, "FILE", "write the JSON results to a file as well"),

#undef GROUP
#define GROUP OPTION_MODEL
    TEXT("config", DESCRIBED, config, "FILE", "a config.json, or the name of a shipped one"),
    TEXT("layer-type", DESCRIBED, layer_type, "NAME", "layer type where the config has several"),
    FLAG("allow-unread", DESCRIBED, allow_unread,
         "warn of RoPE fields that nothing reads, not fail"),

#undef GROUP
#define GROUP OPTION_CASE
    FLAG("append", CALLED, append, "normalise, rotate and cache in one call"),
    FLAG("attention", CALLED, attention, "rotate and attend in one call"),
    FIELD("tokens", INT64, CALLED, tokens, "N", SIZES, "tokens of a row"),
    CHOICE("dtype", DESCRIBED, desc.dtype, "f32|f16|bf16|f64",
           "element type [the config's or bf16, else f32]"),
    FIELD("batch", INT64, CALLED, batch, "N", SIZES, "batch rows [1]"),
    FIELD("q-heads", INT64, CALLED, q_heads, "N", SIZES, "heads of q [32]"),
    FIELD("k-heads", INT64, CALLED, k_heads, "N", SIZES, "heads of k [8]"),
    INT32("head-dim", head_dim, COUNT32, "elements of a head [128]"),
    CHOICE("layout", CALLED, layout, "bshd|bhsd|sbhd", "order of batch, token, head and dim"),
    FLAG("in-place", CALLED, in_place, "rotate in place"),
    CHOICE("cache", COMMAND_BENCH, cache, "warm|cold",
           "one buffer, or buffers beyond the cache [warm]"),
    TEXT("kernel", DESCRIBED, desc.kernel, "NAME", "force a candidate kernel"),
    CHOICE("launch", DESCRIBED, desc.launch, "serial|programmatic",
           "start before the launch ahead ends"),

#undef GROUP
#define GROUP OPTION_TENSORS
    INT32("rotary-dim", rotary_dim, COUNT32, "elements that rotate"),
    INT32("rotary-offset", rotary_offset, RANGE32, "first element that rotates"),
    INT32("k-head-dim", k_head_dim, COUNT32, "k's head_dim where it differs"),
    INT32("k-rotary-offset", k_rotary_offset, RANGE32, "first element of k that rotates"),
    CHOICE("pairing-in", DESCRIBED, desc.pairing_in, "half-split|interleaved", "pairs read"),
    CHOICE("pairing-out", DESCRIBED, desc.pairing_out, "half-split|interleaved", "pairs written"),
    CHOICE("direction", DESCRIBED, desc.direction, "forward|transpose|inverse", "what is applied"),
    CHOICE("arithmetic", DESCRIBED, desc.arithmetic, "fp32|model-dtype", "precision of a rotation"),

#undef GROUP
#define GROUP OPTION_FREQUENCIES
    CHOICE("rope-type", DESCRIBED, desc.rope_type,
           "default|linear|dynamic|yarn|longrope|llama3|proportional|inv_freq", "frequency rule"),
    REAL("rope-theta", rope_theta, "base [10000]"),
    REAL("factor", factor, "linear, dynamic, yarn, llama3, longrope"),
    REAL("low-freq-factor", low_freq_factor, "llama3"),
    REAL("high-freq-factor", high_freq_factor, "llama3"),
    REAL("beta-fast", beta_fast, "yarn"),
    REAL("beta-slow", beta_slow, "yarn"),
    REAL("mscale", mscale, "yarn"),
    REAL("mscale-all-dim", mscale_all_dim, "yarn"),
    REAL("attention-factor", attention_factor, "replaces the rule's own"),
    REAL("alpha", alpha, "dynamic"),
    REAL("partial-rotary-factor", partial_rotary_factor, "proportional"),
    REAL("short-mscale", short_mscale, "longrope"),
    REAL("long-mscale", long_mscale, "longrope"),
    FIELD("short-factor", FACTORS, DESCRIBED, desc.short_factor, "X,X,...", 0, 0, "longrope"),
    FIELD("long-factor", FACTORS, DESCRIBED, desc.long_factor, "X,X,...", 0, 0, "longrope"),
    CHOICE("longrope-select", DESCRIBED, desc.longrope_select, "per-sequence|static|short|long",
           "longrope"),
    CHOICE("truncate", DESCRIBED, desc.truncate, "on|off", "yarn"),
    FIELD("inv-freq", FACTORS, DESCRIBED, desc.inv_freq, "X,X,...", 0, 0, "radians a position"),
    INT64("original-max-position-embeddings", original_max_position_embeddings, COUNT64,
          "yarn, longrope, llama3"),
    INT64("max-position-embeddings", max_position_embeddings, COUNT64, "dynamic, longrope"),
    INT64("sequence-length", sequence_length, COUNT64, "dynamic"),
    REAL("xpos-scale-base", xpos_scale_base, "XPos on"),
    INT64("xpos-center", xpos_center, ANY64, "position where XPos scales by 1"),

#undef GROUP
#define GROUP OPTION_POSITIONS
    FIELD("position-offset", INT64, CALLED, position_offset, "N", ANY64, "added to positions"),
    CHOICE("position-ids", CALLED, position_ids, "none|sequential|random", "ids of every token"),
    FIELD("max-position", INT64, CALLED, max_position, "N", 0, INT64_MAX,
          "largest random id [131071]"),
    FIELD("position-dtype", CHOICE, DESCRIBED, desc.position_dtype, "i32|i64", ROPE_I32 - 1, 0,
          "index arrays [i64]"),
    FIELD("cu-seqlens", INDICES, CALLED, cu_seqlens, "N,N,...", 0, 0, "packed sequences"),
    FIELD("sequence-offsets", INDICES, CALLED, sequence_offsets, "N,N,...", 0, 0,
          "position offset of each sequence"),
    FIELD("sequence-lengths", INDICES, CALLED, sequence_lengths, "N,N,...", 0, 0,
          "length of each sequence: longrope"),
    INT32("axes", axes, COUNT32, "position axes"),
    CHOICE("axis-layout", DESCRIBED, desc.axis_layout, "chunked|interleaved|alternating|custom",
           "how pairs are dealt to axes"),
    CHOICE("axis-frequency", DESCRIBED, desc.axis_frequency, "shared|restart",
           "frequency index of a section"),
    FIELD("sections", SECTIONS, DESCRIBED, desc.sections, "N,N,...", 0, 0, "pairs of each axis"),
    FIELD("pair-axis", BYTES, DESCRIBED, desc.pair_axis, "N,N,...", 0, 0, "axis of each pair"),
    CHOICE("shard", DESCRIBED, desc.shard, "none|contiguous|zigzag", "context parallelism"),
    INT32("shard-rank", shard_rank, RANGE32, "this rank"),
    INT32("shard-size", shard_size, COUNT32, "ranks"),

#undef GROUP
#define GROUP OPTION_ANGLES
    CHOICE("angle-mode", DESCRIBED, desc.angle_mode, "exact|f32|table", "how angles come to be"),
    CHOICE("table-dtype", DESCRIBED, desc.table_dtype, "f32|f16|bf16|f64", "angle mode table"),
    CHOICE("table-width", DESCRIBED, desc.table_width, "half|full", "angle mode table"),
    FIELD("table-rows", INT64, CALLED, table_rows, "N", SIZES, "rows of the caller's tables"),
    CHOICE("out-of-range", DESCRIBED, desc.out_of_range, "error|identity|clamp",
           "angle mode table"),

#undef GROUP
#define GROUP OPTION_APPEND
    PART(q),
    PART(k),
    PART(v),
    CHOICE("rotation", CALLED, appends.rotation, "on|off", "whether q and k rotate"),
    FIELD("v-heads", INT64, CALLED, v_heads, "N", SIZES, "heads of v [those of k]"),
    CHOICE("k-source", CALLED, appends.k_source, "tensor|cache",
           "cache: keys rotate where they are"),
    CHOICE("page-layout", CALLED, page_layout, "nhd|hnd", "order of slot, head and dim"),
    FIELD("ring", INT64, CALLED, appends.ring, "N", COUNT64,
          "tokens that a sequence keeps: table, sequence"),
    FIELD("slot-dtype", CHOICE, CALLED, appends.slot_dtype, "i32|i64", ROPE_I32 - 1, 0,
          "type of slots [position-dtype]"),
    FIELD("block-table-dtype", CHOICE, CALLED, appends.table_dtype, "i32|i64", ROPE_I32 - 1, 0,
          "type of block tables [position-dtype]"),
    FIELD("k-dim-block", INT32, CALLED, appends.k_dim_block, "N", COUNT32,
          "elements of k side by side in a page [all]"),
    FIELD("v-dim-block", INT32, CALLED, appends.v_dim_block, "N", COUNT32, "the same of v"),

#undef GROUP
#define GROUP OPTION_CACHE
    FIELD("v-head-dim", INT32, CALLED, appends.v_head_dim, "N", COUNT32, "v's head_dim"),
    CHOICE("kv-cache", CALLED, appends.cache, "slots|table|sequence",
           "where k and v are cached [not]"),
    FIELD("page-size", INT64, CALLED, appends.page_size, "N", COUNT64,
          "tokens of a page [16; sequence: all]"),

#undef GROUP
#define GROUP OPTION_ATTENTION
    FLAG("backward", CALLED, backward, "and its gradients"),
    FLAG("decode", CALLED, decode, "append the tokens too: they are the last keys"),
    FLAG("nondeterministic", CALLED, nondeterministic,
         "also by kernels that sum in no fixed order"),
    CHOICE("rotate", CALLED, attends.rotation, "qk|q|none", "what rotates here [qk; cached: q]"),
    FLAG("v-in-k", CALLED, v_in_k, "cached keys begin with their values: MLA"),
    FIELD("keys", INT64, CALLED, keys, "N", COUNT64, "cached keys of a sequence [tokens]"),
    CHOICE("mask", CALLED, attends.mask, "causal|full", "keys that a query sees"),
    FIELD("window", INT64, CALLED, attends.window, "N", COUNT64, "the last of them"),
    FIELD("window-right", INT64, CALLED, attends.window_right, "N", COUNT64,
          "keys after its own, with full"),
    FIELD("chunk", INT64, CALLED, attends.chunk, "N", COUNT64, "those of its own chunk"),
    FIELD("soft-cap", DOUBLE, CALLED, attends.soft_cap, "X", 0, 0, "cap of scores"),
    FIELD("scale", DOUBLE, CALLED, attends.scale, "X", 0, 0, "of scores [1 / sqrt(head-dim)]"),

#undef GROUP
};

const int32_t option_field_count = sizeof option_fields / sizeof option_fields[0];

bool option_is_store(const option_field *field) {
    return field->offset == offsetof(options, appends.k.store_dtype) ||
           field->offset == offsetof(options, appends.k.scale) ||
           field->offset == offsetof(options, appends.v.store_dtype) ||
           field->offset == offsetof(options, appends.v.scale);
}
