/**
 * @file rope.h
 * @brief Rotary position embedding on any device: what a program uses.
 *
 * A program describes a kind of layer once (rope_desc), makes a plan for it (rope_plan_create) and
 * applies the plan to any batch (rope_apply). Every enumerated field is an int32_t whose value 0
 * means "the default"; every number whose value is 0 means "not given". Every struct but
 * rope_tensor begins with struct_size: set it to the struct's sizeof before a call reads or fills
 * the struct. A newer struct is accepted when its bytes beyond this version's are 0. Functions
 * return a status and never print, abort or leave a half-written buffer; rope_last_error() says
 * what was wrong.
 *
 * Thread safety: every function may be called from any thread. A plan and a device are immutable
 * once made and may be shared; destroying one while another thread uses it is an error. Calls on
 * the CPU from 1 MiB on run on an OpenMP team, whose runtime ends a process when the system refuses
 * it a thread. In the child of a fork that the library has seen they run on one thread, as a team
 * that anyone made has no threads there; a child that loads the library itself, after its parent
 * ran such a team, must call omp_set_num_threads(1) first. Where calls are milliseconds apart,
 * OMP_WAIT_POLICY=passive or OMP_PROC_BIND=close keeps a team that waits from delaying one that
 * wakes.
 *
 * Stack: a call needs at most 96 KB of it, and so does each thread of the team (OMP_STACKSIZE); a
 * GPU's runtime may need more. With less it ends in a fault where the compiler of the library has
 * -fstack-clash-protection.
 *
 * Unloading: threads of that team outlive their call, so the code must stay. libropekit.so does,
 * whoever closes it; a shared object that holds libropekit as a static library must be linked with
 * -Wl,-z,nodelete, as find_package and pkg-config do, or never be closed.
 */
#ifndef ROPEKIT_ROPE_H
#define ROPEKIT_ROPE_H

#include <stddef.h>
#include <stdint.h>

/** @name Version of this header
 * @{ */
#define ROPE_VERSION_MAJOR 0 /**< Changes with the ABI. */
#define ROPE_VERSION_MINOR 1 /**< Changes with what the API can do. */
#define ROPE_VERSION_PATCH 0 /**< Changes with anything else. */
/** @} */

/** Marks what the library exports. */
#if defined(ROPE_STATIC) || !defined(__GNUC__)
#define ROPE_API
#else
#define ROPE_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** @name Limits
 * @{ */
#define ROPE_MAX_ROTARY_DIM 4096  /**< Largest rotary_dim. */
#define ROPE_MAX_HEAD_DIM 65536   /**< Largest head_dim. */
#define ROPE_MAX_AXES 4           /**< Most position axes (time, height, width, one more). */
#define ROPE_MAX_STRUCT_SIZE 4096 /**< Largest struct_size, of this version and all to come. */
/** @} */

/** Result of a call: one of the ROPE_ERROR_ numbers, which never change, or ROPE_OK. */
typedef int32_t rope_status;
enum {
    ROPE_OK = 0,
    ROPE_ERROR_INVALID_VALUE = 1, /**< A field is outside its range, or would be ignored. */
    ROPE_ERROR_NULL_POINTER = 2,  /**< A required pointer is null. */
    ROPE_ERROR_MISALIGNED = 3,    /**< A pointer is not a multiple of its element size. */
    ROPE_ERROR_OVERLAP = 4,       /**< Views overlap, or output strides alias. */
    ROPE_ERROR_OVERFLOW = 5,      /**< A product of sizes does not fit 64 bits. */
    ROPE_ERROR_ABI = 6, /**< A struct comes from a newer version and sets what is unknown. */
    ROPE_ERROR_OUT_OF_MEMORY = 7,   /**< Host or device memory is exhausted. */
    ROPE_ERROR_UNSUPPORTED = 8,     /**< Every kernel of the backend declined. */
    ROPE_ERROR_NO_BACKEND = 9,      /**< The named backend is not known or not built. */
    ROPE_ERROR_NO_DEVICE = 10,      /**< The backend is there and its device is not. */
    ROPE_ERROR_POSITION_RANGE = 11, /**< A position lies outside the caller's table. */
    ROPE_ERROR_DEVICE = 12,         /**< The device's runtime reported an error. */
    ROPE_STATUS_COUNT = 13
};

/** Element types. */
enum {
    ROPE_F32 = 1,
    ROPE_F16 = 2,
    ROPE_BF16 = 3,
    ROPE_F64 = 4,
    ROPE_I32 = 5,
    ROPE_I64 = 6,
    ROPE_F8E4M3 = 7,     /**< OCP: largest 448, no infinity. */
    ROPE_F8E5M2 = 8,     /**< OCP: largest 57344. */
    ROPE_F8E4M3FNUZ = 9, /**< AMD's: largest 240, no infinity and no negative zero. */
    ROPE_I8 = 10         /**< -128..127. */
};

/** Which elements of the rotary window form pair i, for r = rotary_dim. */
enum {
    ROPE_PAIRING_HALF_SPLIT = 1, /**< (i, i + r/2), GPT-NeoX and Llama in Transformers. Default. */
    ROPE_PAIRING_INTERLEAVED = 2 /**< (2i, 2i + 1), GPT-J. */
};

/** What is done with the rotation R, with a its attention factor. */
enum {
    ROPE_FORWARD = 1,   /**< y = a R x. Default. */
    ROPE_TRANSPOSE = 2, /**< y = a R^T x: the gradient of forward. */
    ROPE_INVERSE = 3    /**< y = (1/a) R^T x: undoes forward. */
};

/** How cos and sin of an angle come to be (docs/numerics.md). */
enum {
    ROPE_ANGLE_EXACT =
        1, /**< Position times frequency in 64-bit fixed point: within 8e-8. Default. */
    ROPE_ANGLE_F32 = 2,  /**< fp32 frequency times fp32 position, as Transformers computes it. */
    ROPE_ANGLE_TABLE = 3 /**< The caller's cos and sin, given with each call. */
};

/** In which precision a pair is rotated. */
enum {
    ROPE_ARITHMETIC_FP32 = 1, /**< fp32 (fp64 for ROPE_F64), rounded once at the store. Default. */
    ROPE_ARITHMETIC_MODEL_DTYPE =
        2 /**< Each product and the sum rounded to dtype: eager PyTorch. */
};

/** Frequency rules, with the names Transformers gives them; for pair i of r = rotary_dim elements,
 * in radians a position. docs/numerics.md has each formula in full, with its source. */
enum {
    ROPE_TYPE_DEFAULT = 1,  /**< w_i = rope_theta^(-2i/r). */
    ROPE_TYPE_LINEAR = 2,   /**< w_i / factor. */
    ROPE_TYPE_DYNAMIC = 3,  /**< NTK by sequence_length, or by alpha when given. */
    ROPE_TYPE_YARN = 4,     /**< Ramp between w_i / factor and w_i; attention factor. */
    ROPE_TYPE_LONGROPE = 5, /**< w_i / short_factor_i or w_i / long_factor_i; attention factor. */
    ROPE_TYPE_LLAMA3 = 6,   /**< Three bands by wavelength. */
    ROPE_TYPE_PROPORTIONAL =
        7,                 /**< Exponent over r, pairs past partial_rotary_factor stand still. */
    ROPE_TYPE_INV_FREQ = 8 /**< The caller's inv_freq. */
};

/** YaRN's correction range: rounded outwards to whole pairs, or left as it is (gpt-oss). */
enum { ROPE_TRUNCATE_ON = 1 /**< Default. */, ROPE_TRUNCATE_OFF = 2 };

/** Which factor list a longrope sequence takes. */
enum {
    ROPE_LONGROPE_PER_SEQUENCE =
        1,                    /**< Long when the sequence exceeds the original length. Default. */
    ROPE_LONGROPE_STATIC = 2, /**< Long when max_position_embeddings exceeds the original length. */
    ROPE_LONGROPE_SHORT = 3,
    ROPE_LONGROPE_LONG = 4
};

/** How pairs are dealt to position axes. */
enum {
    ROPE_AXES_CHUNKED = 1,     /**< sections[a] pairs for axis a, in blocks (Qwen2-VL). */
    ROPE_AXES_INTERLEAVED = 2, /**< Pair i: axis 1 where i%3==1 and i<3*sections[1], axis 2 where
                                  i%3==2 and i<3*sections[2], else axis 0 (Qwen3-VL). */
    ROPE_AXES_ALTERNATING = 3, /**< Axes 1 and 2 alternate, then axis 0 (Ernie 4.5 VL). */
    ROPE_AXES_CUSTOM = 4       /**< The caller's pair_axis. */
};

/** Whether the frequency index runs on through the sections or starts again in each. */
enum {
    ROPE_AXIS_FREQUENCY_SHARED = 1, /**< Pair i has w_i. Default. */
    ROPE_AXIS_FREQUENCY_RESTART = 2 /**< Pair j of a section of n has theta^(-j/n): 2-D vision
                                       towers. With default, linear, longrope, llama3. */
};

/** Width of a row of the caller's cos and sin. */
enum {
    ROPE_TABLE_HALF = 1, /**< r/2 entries, one a pair. Default. */
    ROPE_TABLE_FULL = 2  /**< r entries, one an element, in the order of pairing_out. */
};

/** What a token does whose position lies outside the caller's table. */
enum {
    ROPE_OUT_OF_RANGE_ERROR = 1,    /**< ROPE_ERROR_POSITION_RANGE or the position flag. Default. */
    ROPE_OUT_OF_RANGE_IDENTITY = 2, /**< It passes through unrotated, from
                                     pairing_in to pairing_out. */
    ROPE_OUT_OF_RANGE_CLAMP = 3     /**< It takes the first or the last row. */
};

/** How a kernel follows what is ahead of it on its stream. */
enum {
    ROPE_LAUNCH_SERIAL = 1,      /**< Starts when that has ended. */
    ROPE_LAUNCH_PROGRAMMATIC = 2 /**< Starts early where the device can, and waits for it before it
                                      touches memory (CUDA's programmatic dependent launch). */
};

/** Context parallelism: which tokens of each sequence this rank holds. */
enum {
    ROPE_SHARD_NONE = 1,       /**< All. Default. */
    ROPE_SHARD_CONTIGUOUS = 2, /**< The shard_rank-th of shard_size equal parts. */
    ROPE_SHARD_ZIGZAG = 3      /**< Chunks shard_rank and 2*shard_size-1-shard_rank of 2*shard_size,
      which divides each packed length. */
};

/**
 * A kind of layer. Set struct_size to sizeof(rope_desc) and zero the rest (ROPE_DESC_INIT), then
 * fill what matters. A field that the chosen rule or mode would not read must stay 0.
 */
typedef struct rope_desc {
    size_t struct_size; /**< sizeof(rope_desc). Smaller: later fields are defaults. */

    /* tensors */
    int32_t dtype;         /**< ROPE_F32, ROPE_F16, ROPE_BF16 or ROPE_F64 of q and k. Required. */
    int32_t head_dim;      /**< Elements of a head, 2..ROPE_MAX_HEAD_DIM. Required. */
    int32_t rotary_dim;    /**< Elements that rotate, even, at most head_dim. 0: head_dim. */
    int32_t rotary_offset; /**< First element of the window, even. */
    int32_t k_head_dim;    /**< 0: k is shaped as q. Else k's head_dim, with k_rotary_offset. */
    int32_t
        k_rotary_offset; /**< First element of k's window, even; read when k_head_dim is given. */
    int32_t pairing_in;  /**< ROPE_PAIRING_ of what is read. */
    int32_t pairing_out; /**< ROPE_PAIRING_ of what is written. 0: as pairing_in. */
    int32_t direction;   /**< ROPE_FORWARD, ROPE_TRANSPOSE or ROPE_INVERSE. For the last two,
                              pairing_in and pairing_out are still what is read and written. */
    int32_t angle_mode;  /**< ROPE_ANGLE_. */
    int32_t arithmetic;  /**< ROPE_ARITHMETIC_. */

    /* frequencies: names and meaning of a Transformers rope config */
    int32_t rope_type;       /**< ROPE_TYPE_. */
    double rope_theta;       /**< Base, > 0 (yarn: > 1). 0: 10000. */
    double factor;           /**< > 0: linear, dynamic, yarn, llama3, longrope, proportional. */
    double low_freq_factor;  /**< > 0: llama3. */
    double high_freq_factor; /**< >= low_freq_factor: llama3. */
    double beta_fast;        /**< > 0: yarn. 0: 32. */
    double beta_slow;        /**< > 0: yarn. 0: 1. */
    double mscale;           /**< yarn, with mscale_all_dim or not at all. */
    double mscale_all_dim;   /**< yarn, with mscale or not at all. */
    double attention_factor; /**< > 0: replaces the rule's own, so mscale* and *_mscale stay 0. */
    double alpha;            /**< > 0: dynamic by theta*alpha^(r/(r-2)) instead of by factor. */
    double partial_rotary_factor; /**< 0..1: proportional. 0: 1. */
    double short_mscale;          /**< > 0: longrope's attention factor when short. */
    double long_mscale;           /**< > 0: longrope's attention factor when long. */
    double xpos_scale_base;       /**< >= 2: XPos on, usually 512. Its scale is kept within [2^-126,
                                     2^126], in every arithmetic. */
    int64_t xpos_center;          /**< Position where XPos scales by 1. */
    int64_t original_max_position_embeddings; /**< > 0 (longrope: >= 2): yarn, longrope, llama3. */
    int64_t max_position_embeddings;          /**< > 0: dynamic, longrope. */
    int64_t sequence_length;                  /**< dynamic. 0: max_position_embeddings. */
    const double *short_factor;               /**< longrope: rotary_dim/2 factors, copied. */
    const double *long_factor;                /**< longrope: rotary_dim/2 factors, copied. */
    const double *inv_freq;                   /**< ROPE_TYPE_INV_FREQ: rotary_dim/2 radians a
                                                   position, |w| < 2^63, copied. */
    int32_t factor_count;                     /**< Entries of each of the three lists above. */
    int32_t truncate;                         /**< ROPE_TRUNCATE_: yarn. */
    int32_t longrope_select;                  /**< ROPE_LONGROPE_: longrope. */

    /* positions */
    int32_t
        position_dtype;  /**< ROPE_I32 or ROPE_I64 of every index array of a call. 0: ROPE_I64. */
    int32_t axes;        /**< Position axes, 1..ROPE_MAX_AXES. 0: 1. */
    int32_t axis_layout; /**< ROPE_AXES_. Required when axes > 1. */
    int32_t axis_frequency;          /**< ROPE_AXIS_FREQUENCY_. */
    int32_t sections[ROPE_MAX_AXES]; /**< Pairs of each axis; they sum to rotary_dim/2. */
    const uint8_t
        *pair_axis;     /**< ROPE_AXES_CUSTOM: axis of each pair, rotary_dim/2 entries, copied. */
    int32_t shard;      /**< ROPE_SHARD_. */
    int32_t shard_rank; /**< 0..shard_size-1. */
    int32_t shard_size; /**< > 0 when shard is given. */

    /* the caller's tables */
    int32_t table_dtype;  /**< ROPE_F32 or dtype. 0: ROPE_F32. */
    int32_t table_width;  /**< ROPE_TABLE_. */
    int32_t out_of_range; /**< ROPE_OUT_OF_RANGE_. */

    /* choice of kernel */
    int32_t device; /**< Index of the backend's device. */
    int32_t launch; /**< ROPE_LAUNCH_. 0: serial. */
    const char
        *backend; /**< Name, comma list in order of preference, or "auto". NULL: ROPE_BACKEND. */
    const char *kernel; /**< Forces a candidate, as in "avx2". NULL: the first that accepts. */
} rope_desc;

/** Initialiser of a rope_desc: its size, and defaults for the rest. */
#if defined(__cplusplus)
#define ROPE_DESC_INIT rope_desc_init()
static inline rope_desc rope_desc_init() {
    rope_desc made = rope_desc();
    made.struct_size = sizeof made;
    return made;
}
#else
#define ROPE_DESC_INIT                                                                             \
    { .struct_size = sizeof(rope_desc) }
#endif

/**
 * q or k of one call: what is read and what is written. Strides count elements over
 * [batch, token, head, dim]. All four strides 0 mean contiguous, or those of `in` when out == in.
 * In place means equal pointers and equal strides; otherwise the views must be disjoint.
 */
typedef struct rope_tensor {
    const void *in;       /**< Device pointer, aligned to its element. NULL with heads 0: absent. */
    void *out;            /**< Device pointer, aligned to its element. */
    int64_t heads;        /**< Number of heads. */
    int64_t in_stride[4]; /**< 0 in one dimension broadcasts it. */
    int64_t out_stride[4]; /**< No two elements may share an address: each stride is beyond what the
                            * dimensions of smaller strides span. */
} rope_tensor;

/**
 * One call. Index arrays hold position_dtype and live where the tensors live. With s the sequence
 * of token t (its batch row, or its part of cu_seqlens) and n its index there, its position is
 * (position_ids ? position_ids[axis, batch, t] : shard(n)) + position_offset + sequence_offsets[s],
 * modulo 2^64. A field that the plan and the other fields leave unread must stay 0 or NULL, whether
 * or not there is an element to rotate; only stream and position_flag, which a backend may have no
 * use for, and the pointers and strides of a tensor without elements are free.
 */
typedef struct rope_args {
    size_t struct_size;           /**< sizeof(rope_args). */
    int64_t batch;                /**< Batch rows, >= 0; 1 with cu_seqlens. */
    int64_t tokens;               /**< Tokens of a batch row, >= 0. */
    rope_tensor q;                /**< First tensor. */
    rope_tensor k;                /**< Second tensor; either may be absent. */
    int64_t position_offset;      /**< Added to every position. */
    const void *position_ids;     /**< Ids of every token, or NULL. No list or table that a call
                                       reads may overlap what it writes: ROPE_ERROR_OVERLAP. */
    int64_t position_stride[3];   /**< position_ids: elements over [axis, batch, token]. All 0:
                                       contiguous. */
    const void *sequence_offsets; /**< One a sequence, or NULL. */
    const void *cu_seqlens;       /**< sequences + 1 boundaries of packed sequences, or NULL. Whole
                                       lengths, also where this rank holds a shard of each: then
                                       multiples of shard_size, for zigzag an even number of them
                                       apart; where they are not, ROPE_ERROR_INVALID_VALUE, or the
                                       position flag for that sequence's tokens. A sequence may
                                       begin before the first token and end past the last; tokens
                                       outside every sequence pass through. Boundaries that fall are
                                       ROPE_ERROR_INVALID_VALUE; an asynchronous backend does not
                                       see it: a token is then of one of the sequences that hold it,
                                       or passes through. */
    int64_t sequences;            /**< cu_seqlens: number of packed sequences, below 2^59. */
    const void *sequence_lengths; /**< longrope per sequence: total length of each. Required with
                                       position_ids; else NULL takes last position + 1. */
    const void *cos;              /**< ROPE_ANGLE_TABLE: entry of row 0. */
    const void *sin;              /**< ROPE_ANGLE_TABLE: entry of row 0. */
    int64_t table_rows;           /**< ROPE_ANGLE_TABLE: rows; positions index them. */
    int64_t table_stride[3];      /**< ROPE_ANGLE_TABLE: elements over [batch, row, entry]. All 0:
                                       {0, width, 1}. */
    int32_t *position_flag;       /**< An int32 that the device can write, or NULL: an asynchronous
                                       backend sets it to 1 when it left out a token for its
                                       position. In pinned host memory the caller reads it behind
                                       an event of its own, without a copy. */
    void *stream; /**< The backend's stream, of the plan's device, or NULL for its default. */
} rope_args;

/** Initialiser of a rope_args: its size, and defaults for the rest. */
#if defined(__cplusplus)
#define ROPE_ARGS_INIT rope_args_init()
static inline rope_args rope_args_init() {
    rope_args made = rope_args();
    made.struct_size = sizeof made;
    return made;
}
#else
#define ROPE_ARGS_INIT                                                                             \
    { .struct_size = sizeof(rope_args) }
#endif

/** A descriptor bound to a backend, a device and a kernel. */
typedef struct rope_plan rope_plan;

/** The library's version as "major.minor.patch". */
ROPE_API const char *rope_version(void);

/** Name of a status, as in "ROPE_ERROR_OVERLAP"; "unknown status" for any other number. */
ROPE_API const char *rope_status_string(rope_status status);

/** What this thread's last failed call found wrong: the field, its value and what is allowed. Never
 *  NULL; valid until the thread's next call into the library. */
ROPE_API const char *rope_last_error(void);

/**
 * Checks a descriptor, computes its frequencies, chooses a backend and binds a kernel.
 * @param desc  copied, with everything it points to
 * @param plan  receives the plan; untouched on error
 * @return ROPE_OK, INVALID_VALUE, NULL_POINTER, ABI, OUT_OF_MEMORY, UNSUPPORTED, NO_BACKEND,
 * NO_DEVICE or DEVICE
 */
ROPE_API rope_status rope_plan_create(const rope_desc *desc, rope_plan **plan);

/** Destroys a plan whose work has completed. NULL is allowed. */
ROPE_API void rope_plan_destroy(rope_plan *plan);

/** The chosen kernel, as in "cpu:avx512", or those among which calls choose, with commas between
 * them; valid as long as the plan. NULL for a NULL plan. */
ROPE_API const char *rope_plan_kernel(const rope_plan *plan);

/** Name of the kernel that runs a call. A plan may hold several, of which a call's sizes choose:
 * the same call takes the same one. Where that kernel does not take the call or its workspace the
 * plan's first kernel runs; this function does not see it. Of a candidate that is a family of
 * kernels this names the ones that attend, as a profiler shows them, with "+" between two:
 * "cuda:decode" is the GPU function gpu_attention_decode. rope_desc.kernel takes the candidate's
 * name, here "splits".
 * @param plan  of any operation
 * @param args  the operation's arguments, as rope_args
 * @return the name, which lives as long as the plan; NULL after an error */
ROPE_API const char *rope_plan_kernel_of(const rope_plan *plan, const void *args);

/** One line for each candidate: its name and "accepted", why it declined, "not needed" where one
 * ahead of it accepted, or "on request" where rope_desc.kernel must name it. Behind "accepted"
 * stands what the kernel promises: "bitwise", the bits of every other such kernel, or "bounded", an
 * error within the operation's bound. Valid as long as the plan. NULL for a NULL plan. */
ROPE_API const char *rope_plan_report(const rope_plan *plan);

/**
 * Rotates q and k. Allocates nothing, takes no lock, reads no environment and does not wait for a
 * device; asynchronous on args->stream where the backend has streams. Empty tensors succeed.
 * @return ROPE_OK, INVALID_VALUE, NULL_POINTER, MISALIGNED, OVERLAP, OVERFLOW, ABI, POSITION_RANGE
 * or DEVICE; nothing is written unless ROPE_OK
 */
ROPE_API rope_status rope_apply(const rope_plan *plan, const rope_args *args);

/**
 * The frequencies that a plan of this descriptor would use.
 * @param desc              any descriptor whose angle_mode is not table
 * @param long_set          0, or 1 for longrope's long factors
 * @param inv_freq          receives rotary_dim/2 values in radians a position
 * @param count             capacity of inv_freq; at least rotary_dim/2
 * @param attention_factor  receives the factor of cos and sin, or NULL
 * @return ROPE_OK, INVALID_VALUE, NULL_POINTER, ABI or OUT_OF_MEMORY
 */
ROPE_API rope_status rope_frequencies(const rope_desc *desc, int32_t long_set, double *inv_freq,
                                      int32_t count, double *attention_factor);

/** @name Hugging Face configurations
 * What a config.json says, as a descriptor.
 * @{ */
typedef struct rope_config rope_config;

/** Shapes that a config states beside its descriptor; 0 where it does not. */
typedef struct rope_model {
    size_t struct_size;              /**< sizeof(rope_model). */
    int64_t num_attention_heads;     /**< Query heads. */
    int64_t num_key_value_heads;     /**< Key heads that rotate: 1 for MLA. */
    int64_t max_position_embeddings; /**< Longest context. */
    int32_t states_dtype;            /**< 1: the config has a dtype; 0: the descriptor's is f32. */
    int32_t kv_lora_rank;            /**< Elements of MLA's latent, or 0. */
} rope_model;

/**
 * Reads a config.json, of equal names the last. What it leaves out is what Transformers takes; a
 * model_type that is not known needs rope_theta, no model_type at all means 10000.
 * @param config      receives it, for one thread at a time; untouched on error
 * @param json        its text in UTF-8 (RFC 8259), no longer needed afterwards
 * @param length      bytes of json
 * @param layer_type  an entry of layer_types, as in "sliding_attention", whose layers rotate; NULL
 *                    takes "full_attention", or the first kind that rotates where that does not
 * @return ROPE_OK, INVALID_VALUE, whose text names the byte or the field, NULL_POINTER or
 * OUT_OF_MEMORY
 */
ROPE_API rope_status rope_config_parse(rope_config **config, const char *json, size_t length,
                                       const char *layer_type);
/** Destroys a configuration. NULL is allowed. */
ROPE_API void rope_config_destroy(rope_config *config);

/** A kind of layer of a configuration. */
typedef struct rope_layer_kind {
    size_t struct_size; /**< sizeof(rope_layer_kind), set by the caller. */
    const char *name;   /**< As layer_types has it, or "" where all layers are alike; valid as long
                             as the configuration. */
    int32_t rotates;    /**< 1: rope_config_parse takes the name. 0: its layers do not rotate. */
    int32_t layers;     /**< Entries of layer_types; 0 where the configuration has no such list. */
    int32_t unrotated;  /**< Of them, those that do not rotate, by no_rope_layers. */
    int64_t window;     /**< Keys that a causal query sees, its own included (sliding_window); of a
                             model that looks both ways the farthest that it sees. 0: all. */
    int64_t chunk;      /**< Tokens of the chunks in which attention stays (attention_chunk_size).
                             0: none. */
} rope_layer_kind;

/** Number of kinds of layers, whichever of them was parsed; 0 without a configuration. Each that
 * rotates has a descriptor of its own, by its name as layer_type of rope_config_parse. */
ROPE_API int32_t rope_config_kind_count(const rope_config *config);
/** Describes the index-th kind of layer; untouched on error.
 * @return ROPE_OK, INVALID_VALUE, NULL_POINTER or ABI */
ROPE_API rope_status rope_config_kind_get(const rope_config *config, int32_t index,
                                          rope_layer_kind *kind);
/**
 * Fills a descriptor. Its pointers stay valid as long as the configuration.
 * @param config  what was read
 * @param desc    receives the descriptor; set its struct_size first. Its head_dim, unless 0, is
 * that of a configuration that states none. Untouched on error
 * @param model   receives the shapes, or NULL; set its struct_size first
 * @return ROPE_OK, INVALID_VALUE, NULL_POINTER or ABI
 */
ROPE_API rope_status rope_config_finish(rope_config *config, rope_desc *desc, rope_model *model);
/** After rope_config_finish: the index-th field that nothing reads of those that RoPE may depend
 * on, or NULL past the last. */
ROPE_API const char *rope_config_ignored(const rope_config *config, int32_t index);
/** After rope_config_finish: how the fields of a model were read whose model_type is not known, or
 * NULL. Valid until the configuration is finished again or destroyed. */
ROPE_API const char *rope_config_note(const rope_config *config);
/** After rope_config_finish: whether every field whose name speaks of rope, rotary or theta was
 * read. A model with one that was not may rotate otherwise than the descriptor says.
 * @return ROPE_OK, NULL_POINTER, or INVALID_VALUE, whose text names the fields */
ROPE_API rope_status rope_config_check(const rope_config *config);
/** @} */

/** @name Backends and devices
 * @{ */

/** A backend and whether it can be used. */
typedef struct rope_backend_info {
    size_t struct_size;   /**< sizeof(rope_backend_info), set by the caller. */
    const char *name;     /**< As in "cpu"; lives as long as the process. */
    const char *origin;   /**< Path of the plugin, or "built in". */
    rope_status status;   /**< ROPE_OK, or why it cannot be used. */
    const char *reason;   /**< Text for status, valid until the thread's next rope_backend_get;
                               empty when ROPE_OK. */
    int32_t device_count; /**< Devices it can use now. */
} rope_backend_info;

/** Number of backends known, usable or not, in the order in which "auto" tries them. Opens every
 * plugin; a call that names its backends opens those alone. 0 where memory for their names runs
 * out, and a later call looks again. */
ROPE_API int32_t rope_backend_count(void);
/** Describes the index-th backend.
 * @return ROPE_OK, INVALID_VALUE, NULL_POINTER or ABI */
ROPE_API rope_status rope_backend_get(int32_t index, rope_backend_info *info);

/** A device of a backend, opened for its memory and its clock. */
typedef struct rope_device rope_device;

/** What a device is. Texts live as long as the process. */
typedef struct rope_device_info {
    size_t struct_size;    /**< sizeof(rope_device_info), set by the caller. */
    const char *backend;   /**< The backend's name. */
    char name[128];        /**< As in "AMD EPYC (Zen 5)" or "NVIDIA H100". */
    char features[128];    /**< What kernels choose by, as in "avx512 avx2 scalar" or "sm_90". */
    int64_t memory_bytes;  /**< Memory in all, 0 if unknown. */
    int64_t cache_bytes;   /**< Last-level cache, 0 if unknown. */
    int32_t compute_units; /**< Threads or multiprocessors that kernels use. */
} rope_device_info;

/** Opens a device; backend as in rope_desc.backend.
 * @return ROPE_OK, INVALID_VALUE, NULL_POINTER, OUT_OF_MEMORY, NO_BACKEND, NO_DEVICE or DEVICE */
ROPE_API rope_status rope_device_open(const char *backend, int32_t index, rope_device **device);
/** Closes a device. Memory allocated through it stays the caller's to free before. */
ROPE_API void rope_device_close(rope_device *device);
/** Describes a device.
 * @return ROPE_OK, NULL_POINTER, ABI or DEVICE */
ROPE_API rope_status rope_device_get(const rope_device *device, rope_device_info *info);
/** Allocates bytes (256-byte aligned or better, as workspaces are) on a device; 0 bytes give NULL.
 * @return ROPE_OK, NULL_POINTER, OUT_OF_MEMORY or DEVICE */
ROPE_API rope_status rope_device_alloc(rope_device *device, size_t bytes, void **pointer);
/** Frees memory of rope_device_alloc. NULL is allowed.
 * @return ROPE_OK, NULL_POINTER or DEVICE, as of the copies and rope_device_synchronize */
ROPE_API rope_status rope_device_free(rope_device *device, void *pointer);
/** Copies host memory to the device and waits. */
ROPE_API rope_status rope_device_copy_in(rope_device *device, void *target, const void *source,
                                         size_t bytes);
/** Copies device memory to the host and waits. */
ROPE_API rope_status rope_device_copy_out(rope_device *device, void *target, const void *source,
                                          size_t bytes);
/** Waits until the device has nothing left to do. */
ROPE_API rope_status rope_device_synchronize(rope_device *device);

/** What rope_time runs. */
enum {
    ROPE_TIME_APPLY = 1,  /**< A call of the plan, checks included. */
    ROPE_TIME_KERNEL = 2, /**< The bound kernel alone, its arguments checked once before. */
    ROPE_TIME_COPY = 3,   /**< A copy kernel of the backend: target = source. */
    ROPE_TIME_UPDATE = 4  /**< A read-modify-write kernel of the backend on target. */
};

/** One measurement. */
typedef struct rope_timing {
    size_t struct_size;    /**< sizeof(rope_timing). */
    int32_t kind;          /**< ROPE_TIME_. */
    int32_t graph;         /**< 1: replay a captured graph where the backend has graphs. */
    int64_t iterations;    /**< Runs between two looks at the clock, > 0. */
    const rope_plan *plan; /**< apply, kernel: on the device's backend. */
    const void *args;      /**< apply, kernel: args_count structs, taken in turn: rope_args, or
                                those of the plan's operation. */
    int64_t args_count;    /**< > 0. */
    void *target;          /**< copy, update: device memory. */
    const void *source;    /**< copy: device memory. */
    size_t bytes;          /**< copy, update: bytes of target. */
    size_t pitch;          /**< copy, update: run i starts at (i % args_count) * pitch. */
    int32_t candidate;     /**< copy, update: index of the kernel. */
    double seconds;        /**< Receives the time of one run. */
    double host_seconds;   /**< Receives the host's time for one run. */
    void *workspace;       /**< apply, kernel: of plans that need one. */
} rope_timing;

/** Times runs by the device's clock; iterations once, after nothing else was waiting.
 * @return ROPE_OK, INVALID_VALUE, NULL_POINTER, ABI, OUT_OF_MEMORY, DEVICE or what a run returned
 */
ROPE_API rope_status rope_time(rope_device *device, rope_timing *timing);
/** Name of the index-th kernel of an operation, as in "rope", "copy" or "update", that a device can
 * run; NULL past the last. It lives as long as the process. */
ROPE_API const char *rope_device_kernel(const rope_device *device, const char *operation,
                                        int32_t index);
/** @} */

/** A variable of the environment that the library or an opened backend reads. Empty is not set. */
typedef struct rope_variable_info {
    size_t struct_size;  /**< sizeof(rope_variable_info), set by the caller. */
    const char *name;    /**< As in "ROPE_BACKEND"; lives as long as the process. */
    const char *selects; /**< What it selects, valid as long as reason. */
    const char *value;   /**< The environment's, or NULL where it is not set. */
    rope_status status;  /**< ROPE_OK, or why the value is of no use. */
    const char *reason; /**< Text for status, valid until the thread's next rope_variable_get; empty
                             when ROPE_OK. */
} rope_variable_info;

/** Number of variables that are read: the library's, then those of each backend opened so far. */
ROPE_API int32_t rope_variable_count(void);
/** Describes the index-th variable and checks its value.
 * @return ROPE_OK, INVALID_VALUE, NULL_POINTER or ABI */
ROPE_API rope_status rope_variable_get(int32_t index, rope_variable_info *info);

/** Receives one line of the library's log, without a newline. Called from any thread; must not call
 * the library. */
typedef void (*rope_log_function)(void *user, int32_t level, const char *text);
/** Sends the log to a function; NULL returns to stderr. The level is ROPE_VERBOSE: 0 silent, 1
 * choices, 2 every candidate; any other value is named once, in a line of level 1. */
ROPE_API void rope_set_log(rope_log_function function, void *user);

#ifdef __cplusplus
}
#endif
#endif
