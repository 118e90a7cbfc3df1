/**
 * @file backend.h
 * @brief What a backend implements: operations, their candidate kernels and the devices.
 *
 * An operation turns arguments into results: it has a problem (what a plan fixes) and a call (what
 * changes from call to call), both structs that only the operation and its kernels know. A backend
 * is a list of candidate kernels, each for one operation, and functions for its devices. A backend
 * outside libropekit is a shared object libropekit_NAME.so that exports ROPE_BACKEND_ENTRY. Nothing
 * here is needed to use the library. docs/extending.md walks through a backend and an operation.
 */
#ifndef ROPEKIT_BACKEND_H
#define ROPEKIT_BACKEND_H

#include <ropekit/append.h>
#include <ropekit/attention.h>
#include <ropekit/decode.h>
#include <ropekit/rope.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Version of rope_backend, rope_candidate and rope_host; a plugin of another one is refused. */
#define ROPE_BACKEND_ABI 2
/** Room for a candidate's reason to decline, terminator included. */
#define ROPE_REASON_SIZE 160
/** What a candidate returns from query or bind when it declines; never leaves the library. */
#define ROPE_DECLINED (-1)
/** Most bytes of a call of an operation: one lies on the stack of whoever applies a plan. */
#define ROPE_MAX_CALL_SIZE 2048

/** What a kernel promises of its results. */
enum {
    ROPE_BITWISE = 1, /**< The bits of every other BITWISE kernel of the operation. */
    ROPE_BOUNDED = 2  /**< An error against the exact result within the operation's bound. */
};

/** @name The operation "rope"
 * Its problem is a rope_problem, its call a rope_call.
 * @{ */
#define ROPE_ROPE_VERSION 1 /**< Of these structs. */

/** One list of frequencies, per pair. longrope has two, every other rule one. */
typedef struct rope_frequency_set {
    const uint64_t *turns;     /**< Turns a position, times 2^64, rounded to nearest. */
    const uint64_t *turns_top; /**< High word of turns a position times 2^128, nearest ... */
    const uint64_t *turns_low; /**< ... and its low word: for fp64 angles. */
    const double *omega;       /**< Radians a position. */
    const float *inv_freq;     /**< The same in fp32: for ROPE_ANGLE_F32. */
    double attention_factor;   /**< Of cos and sin; already inverted for ROPE_INVERSE. */
} rope_frequency_set;

/** A checked descriptor with every default filled in. Host memory that lives as long as the plan.
 */
typedef struct rope_problem {
    int32_t dtype;             /**< ROPE_F32..ROPE_F64. */
    int32_t pairs;             /**< rotary_dim / 2. */
    int32_t head_dim[2];       /**< Of q and of k. */
    int32_t rotary_offset[2];  /**< Of q and of k. */
    int32_t pairing_in;        /**< ROPE_PAIRING_. */
    int32_t pairing_out;       /**< ROPE_PAIRING_. */
    int32_t direction;         /**< ROPE_FORWARD..ROPE_INVERSE. */
    int32_t angle_mode;        /**< ROPE_ANGLE_. */
    int32_t arithmetic;        /**< ROPE_ARITHMETIC_. */
    int32_t axes;              /**< 1..ROPE_MAX_AXES. */
    int32_t position_dtype;    /**< ROPE_I32 or ROPE_I64. */
    int32_t shard;             /**< ROPE_SHARD_. */
    int32_t shard_rank;        /**< 0..shard_size-1. */
    int32_t shard_size;        /**< 1 without shards. */
    int32_t table_dtype;       /**< ROPE_F32 or dtype. */
    int32_t table_width;       /**< ROPE_TABLE_. */
    int32_t out_of_range;      /**< ROPE_OUT_OF_RANGE_. */
    int32_t launch;            /**< ROPE_LAUNCH_. */
    int32_t frequency_sets;    /**< 0 for tables, 1, or 2 when chosen per sequence. */
    int64_t long_from;         /**< With 2 sets: lengths above this take the second. */
    rope_frequency_set set[2]; /**< frequency_sets of them. */
    const uint8_t *pair_axis;  /**< Axis of each pair. */
    const int64_t *xpos_rate; /**< log2 of XPos' scale a position, times 2^63, per pair; or NULL. */
    int64_t xpos_center;      /**< Where XPos scales by 1. */
} rope_problem;

/** Where positions come from: everything rope_position() of common/math/position.h reads, by value.
 */
typedef struct rope_position_map {
    const void *ids;        /**< Or NULL. */
    int64_t id_stride[3];   /**< Over [axis, batch, token]. */
    int64_t offset;         /**< Added to every position. */
    const void *offsets;    /**< One a sequence, or NULL. */
    const void *cu_seqlens; /**< Or NULL. */
    const void *lengths;    /**< One a sequence, or NULL. */
    int64_t sequences;      /**< Of cu_seqlens. */
    int64_t tokens;         /**< Of a batch row. */
    int32_t wide;           /**< 1: index arrays are int64, 0: int32. */
    int32_t shard;          /**< ROPE_SHARD_. */
    int32_t shard_rank;     /**< 0..shard_size-1. */
    int32_t shard_size;     /**< 1 without shards. */
} rope_position_map;

/** q or k of a checked call. Strides in elements over [batch, token, head, dim]. */
typedef struct rope_operand {
    const void *in;        /**< Element 0 of what is read. */
    void *out;             /**< Element 0 of what is written. */
    int64_t heads;         /**< 0: absent. */
    int64_t in_stride[4];  /**< Of in. */
    int64_t out_stride[4]; /**< Of out. */
} rope_operand;

/** A checked call: every default filled in, at least one element to write. */
typedef struct rope_call {
    int64_t batch;              /**< > 0. */
    int64_t tokens;             /**< > 0. */
    rope_operand tensor[2];     /**< q and k; one may be absent. */
    rope_position_map position; /**< Where positions come from. */
    const void *cos;            /**< As rope_args.cos. */
    const void *sin;            /**< As rope_args.sin. */
    int64_t table_rows;         /**< As rope_args.table_rows. */
    int64_t table_stride[3];    /**< Over [batch, row, entry]. */
    int32_t *position_flag;     /**< As rope_args.position_flag. */
} rope_call;
/** @} */

/** @name The operation "append"
 * Its problem is a rope_append_problem, its call a rope_append_call.
 * @{ */
#define ROPE_APPEND_VERSION 1 /**< Of these structs. */

/** Which tensor of a problem or a call. */
enum { ROPE_APPEND_Q = 0, ROPE_APPEND_K = 1, ROPE_APPEND_V = 2, ROPE_APPEND_TENSORS = 3 };

/** What is done with one tensor, defaults filled in. */
typedef struct rope_append_steps {
    int32_t head_dim;     /**< Elements of a head. */
    int32_t rotates;      /**< 1: by rope_append_problem.rope. */
    int32_t norm;         /**< ROPE_NORM_RMS, ROPE_NORM_LAYER or 0. */
    int32_t norm_scope;   /**< ROPE_NORM_HEAD or ROPE_NORM_TOKEN. */
    int32_t norm_offset;  /**< As rope_norm.offset. */
    int32_t norm_dim;     /**< As rope_norm.dim, > 0 with a norm. */
    int32_t weight;       /**< ROPE_NORM_WEIGHT, ROPE_NORM_ONE_PLUS_WEIGHT or 0. */
    int32_t weight_dtype; /**< ROPE_F32 or dtype. */
    int32_t rounding;     /**< ROPE_NORM_ROUND_. */
    float eps;            /**< As rope_norm.eps. */
    float factor;         /**< 1 where there is none. */
    int32_t store_dtype;  /**< Of q's out, of k's and v's cache. */
    int32_t scale;        /**< ROPE_SCALE_ or 0. */
    int32_t dim_block;    /**< Elements of a cached head that lie side by side. */
} rope_append_steps;

/** A checked descriptor with every default filled in. Host memory that lives as long as the plan.
 */
typedef struct rope_append_problem {
    rope_problem rope; /**< dtype, positions, how q and k rotate; without a rotation `pairs` is 0
                          and it has no lists. Attention factors are 1 with ROPE_SOURCE_CACHE. */
    rope_append_steps steps[ROPE_APPEND_TENSORS]; /**< Of q, k and v. */
    int32_t cache;                                /**< ROPE_CACHE_ or 0. */
    int32_t k_source;                             /**< ROPE_SOURCE_. */
    int64_t page_size;                            /**< > 0 with a cache. */
    int64_t ring;                                 /**< 0: none. */
    int32_t slot_wide;                            /**< 1: slots are int64, 0: int32. */
    int32_t table_wide;                           /**< 1: block_table is int64, 0: int32. */
} rope_append_problem;

/** q, k or v of a checked call. Strides in elements. */
typedef struct rope_append_operand {
    const void *in; /**< Element 0 of what is read; NULL with ROPE_SOURCE_CACHE. */
    void *out;      /**< Element 0 of what is written, of dtype, q's of store_dtype; or NULL. */
    int64_t heads;  /**< 0: absent. */
    int64_t in_stride[4];    /**< Over [batch, token, head, dim]. */
    int64_t out_stride[4];   /**< The same of out. */
    const void *weight;      /**< Entry of element norm_offset of head 0, or NULL. */
    int64_t weight_stride;   /**< From a head to the next, or 0. */
    void *cache;             /**< Element 0 of page 0, or NULL. */
    int64_t cache_stride[5]; /**< Over [page, slot, head, block, dim]. */
    float *scale;            /**< Or NULL. */
    int64_t scale_stride[3]; /**< Over [page, slot, head], of q [batch, token, head]; 0 where the
                                  kind of scale does not vary. */
} rope_append_operand;

/** A checked call: every default filled in, at least one element to write. */
typedef struct rope_append_call {
    rope_call rope; /**< Without its tensors: batch, tokens, positions, tables, flag. */
    rope_append_operand tensor[ROPE_APPEND_TENSORS]; /**< q, k and v; some may be absent. */
    int64_t pages;           /**< Of each cache; 0: this call has none, and no slots and table. */
    const void *slots;       /**< As rope_append_args.slots. */
    int64_t slot_stride[2];  /**< Over [batch, token]. */
    const void *block_table; /**< As rope_append_args.block_table. */
    int64_t table_stride[2]; /**< Over [sequence, page]. */
    int64_t table_pages;     /**< Of a sequence. */
    const void *starts;      /**< As rope_append_args.cache_starts. */
} rope_append_call;
/** @} */

/** @name The operation "append_backward"
 * Its problem is a rope_append_problem without a cache, whose `rope` rotates gradients: it is the
 * transpose of the forward's. Its call is a rope_append_backward_call, its bounds
 * rope_append_bounds.
 * @{ */
#define ROPE_APPEND_BACKWARD_VERSION 2 /**< Of these structs. */

/** A checked call: every default filled in, some gradient wanted, at least one element. */
typedef struct rope_append_backward_call {
    rope_append_call forward; /**< Read alone: tensors have heads, 0 where no gradient is wanted,
                                 in, NULL without a norm, and weights; no out and no cache. */
    rope_operand gradient[ROPE_APPEND_TENSORS]; /**< in: of what the forward made; out: of what it
                                                     read, or NULL. */
    float *weight[ROPE_APPEND_TENSORS];         /**< Of weights: [norm_dim], with a weight_stride
                                                     [heads, norm_dim]; or NULL. */
    size_t workspace_bytes;                     /**< Given. */
    int32_t attended;    /**< 1: only what attention takes is differentiated: tokens of sequences,
                              of each the first lengths[s]. What others have is neither read nor
                              written. */
    const void *lengths; /**< Or NULL: all of them. */
    rope_position_map other;   /**< Attended: sequences of what they attend to, or of what attends
                                    to them. One that is out of range there has no gradient. */
    const void *other_lengths; /**< As lengths. */
} rope_append_backward_call;
/** @} */

/** @name The operation "attention"
 * Its problem is a rope_attention_problem, its call a rope_attention_call, its bounds
 * rope_attention_bounds.
 * @{ */
#define ROPE_ATTENTION_VERSION 2 /**< Of these structs. */

/** A checked descriptor with every default filled in. Host memory that lives as long as the plan.
 */
typedef struct rope_attention_problem {
    rope_problem rope; /**< dtype, positions, how q and k rotate; where nothing rotates `pairs` is 0
                            and it has no lists. */
    int32_t head_dim;  /**< Of q and k. */
    int32_t v_head_dim;   /**< Of v and out. */
    int32_t rotates[2];   /**< 1: q, k. */
    int32_t mask;         /**< ROPE_MASK_. */
    int32_t sink_dtype;   /**< ROPE_F32, dtype or 0. */
    float scale;          /**< > 0. */
    float soft_cap;       /**< 0: none. */
    int64_t window;       /**< INT64_MAX: none. */
    int64_t window_right; /**< INT64_MAX: none. */
    int64_t chunk;        /**< INT64_MAX: none. */
    int32_t cache;        /**< ROPE_CACHE_TABLE, ROPE_CACHE_SEQUENCE or 0. */
    int32_t table_wide;   /**< 1: block_table is int64, 0: int32. */
    int64_t page_size;    /**< > 0 with a cache. */
    int64_t ring;         /**< 0: none. */
    rope_append_steps k;  /**< Of the cache: head_dim, store_dtype, scale, dim_block alone. */
    rope_append_steps v;  /**< The same. */

    int32_t nondeterministic; /**< 1: sums of the backward need no fixed order. */
} rope_attention_problem;

/** A checked call: every default filled in, at least one element of out to write, or of k.out: a
 * call of keys alone has 0 tokens, and heads of queries all the same. */
typedef struct rope_attention_call {
    rope_call rope; /**< Of the queries: batch, tokens, tensor[0], positions without what
                         a query's index among its keys adds, tables, flag. tensor[1] is
                         unset. */
    rope_position_map k_position; /**< Of the keys. */
    rope_append_operand k;        /**< in or cache, out, heads; no weight. */
    rope_append_operand v;        /**< in or cache, heads; nothing else. */
    void *out;                    /**< Element 0. */
    int64_t out_stride[4];        /**< Over [batch, token, head, dim]. */
    float *lse;                   /**< Or NULL. */
    int64_t lse_stride[3];        /**< Over [batch, token, head]. */
    int64_t k_tokens;             /**< Keys of a row; with a cache the most of a sequence. */
    const void *q_lengths;        /**< Or NULL: tokens, or by rope.position.cu_seqlens. */
    const void *k_lengths;        /**< Or NULL: k_tokens, or by k_position.cu_seqlens. */
    const void *sinks;            /**< Or NULL. */
    const uint32_t *tree_bits;    /**< Or NULL. */
    int64_t tree_stride[2];       /**< Words over [batch, token]. */
    int64_t tree_keys;            /**< 0 without a tree. */
    int64_t pages;                /**< 0 without a cache. */
    const void *block_table;      /**< As rope_attention_args.block_table. */
    int64_t table_stride[2];      /**< Over [sequence, page]. */
    int64_t table_pages;          /**< Pages of a sequence: 1 with ROPE_CACHE_SEQUENCE. */
    size_t workspace_bytes;       /**< Given. */
} rope_attention_call;
/** @} */

/** @name The operation "attention_backward"
 * Its problem is a rope_attention_problem without a cache and a tree, its call a
 * rope_attention_backward_call, its bounds rope_attention_bounds.
 * @{ */
#define ROPE_ATTENTION_BACKWARD_VERSION 2 /**< Of these structs. */

/** A checked call: every default filled in, some gradient wanted, at least one element of out, or
 * of keys: a call of keys alone has 0 tokens, and heads of queries all the same. */
typedef struct rope_attention_backward_call {
    rope_attention_call forward; /**< Read alone: out, lse, which is there, and what is rotated.
                                      Where rope.tensor[0] or k has an out that is it, and in too;
                                      else in is to be rotated where the problem says so. */
    const void *dout;            /**< Element 0. */
    int64_t dout_stride[4];      /**< Over [batch, token, head, dim], as those below. */
    void *dq;                    /**< Or NULL. */
    int64_t dq_stride[4];        /**< Of dq. */
    void *dk;                    /**< Or NULL. */
    int64_t dk_stride[4];        /**< Of dk. */
    void *dv;                    /**< Or NULL. */
    int64_t dv_stride[4];        /**< Of dv. */
    float *dsinks;               /**< One a head of q, or NULL. */
} rope_attention_backward_call;
/** @} */

/** @name The operation "attention_merge"
 * Its problem is a rope_attention_merge_problem, its call a rope_attention_merge_call.
 * @{ */
#define ROPE_ATTENTION_MERGE_VERSION 1 /**< Of these structs. */

/** A checked descriptor. */
typedef struct rope_attention_merge_problem {
    int32_t dtype;    /**< ROPE_F32, ROPE_F16 or ROPE_BF16. */
    int32_t head_dim; /**< Of in and out. */
} rope_attention_merge_problem;

/** A checked call: at least one element to write. */
typedef struct rope_attention_merge_call {
    int64_t parts;            /**< > 0. */
    int64_t batch;            /**< > 0. */
    int64_t tokens;           /**< > 0. */
    int64_t heads;            /**< > 0. */
    const void *in;           /**< Element 0 of part 0. */
    int64_t in_stride[5];     /**< Over [part, batch, token, head, dim]. */
    const float *in_lse;      /**< Of part 0. */
    int64_t in_lse_stride[4]; /**< Over [part, batch, token, head]. */
    void *out;                /**< Element 0. */
    int64_t out_stride[4];    /**< Over [batch, token, head, dim]. */
    float *lse;               /**< Or NULL. */
    int64_t lse_stride[3];    /**< Over [batch, token, head]. */
} rope_attention_merge_call;
/** @} */

/** @name The operation "decode"
 * Its problem is a rope_decode_problem, its call a rope_decode_call, its bounds
 * rope_attention_bounds. A backend needs no candidate of it: the library composes those of append
 * and attention, with the name "composed". They also run a call that a candidate does not take: its
 * run returns UNSUPPORTED, INVALID_VALUE or OVERFLOW, with nothing written.
 * @{ */
#define ROPE_DECODE_VERSION 2 /**< Of these structs. */

/** A checked descriptor. Host memory that lives as long as the plan. */
typedef struct rope_decode_problem {
    const rope_append_problem *append;       /**< With a cache; q's store_dtype is dtype. */
    const rope_attention_problem *attention; /**< Rotates nothing. Its cache is the append's,
                                                  ROPE_CACHE_TABLE where that is SLOTS. */
} rope_decode_problem;

/** A checked call: q and k have heads, and there is at least one token. */
typedef struct rope_decode_call {
    rope_append_call append;       /**< q.out is NULL where rotated queries are not wanted. */
    rope_attention_call attention; /**< in of rope.tensor[0] is q.out of append, or NULL. Its
                                        strides, k, v, pages and table are set. */
    int64_t most_tokens; /**< No sequence is to have more: rope_decode_args.most_tokens, or all
                              tokens of a row. */
} rope_decode_call;
/** @} */

/** @name The operations "copy" and "update"
 * The floors beside which kernels are timed. They have no problem (NULL); their call is a
 * rope_traffic.
 * @{ */
#define ROPE_TRAFFIC_VERSION 1 /**< Of this struct. */

/** A copy (source given) or a read-modify-write of target. */
typedef struct rope_traffic {
    void *target;       /**< Device memory. */
    const void *source; /**< NULL for an update. */
    size_t bytes;       /**< Of target. */
} rope_traffic;
/** @} */

/** One kernel for one operation, or a family of kernels that the size of a call chooses among. */
typedef struct rope_candidate {
    const char *operation; /**< Name of the operation, as in "rope". */
    int32_t version;       /**< Of the operation's structs; with another one it is never asked. */
    int32_t numerics;      /**< ROPE_BITWISE or ROPE_BOUNDED. */
    const char *name;      /**< Unique within backend and operation, as in "avx512". */
    const void *data;      /**< The backend's own. */
    int32_t on_request;    /**< 1: never chosen unless named. */
    /**
     * Says whether this candidate can serve a problem, or declines; cheap, and prepares nothing.
     * NULL: it serves all.
     * @param self     this candidate
     * @param problem  NULL to ask only whether the device can run this candidate at all
     * @param device   the backend's device index
     * @param reason   ROPE_REASON_SIZE bytes for the reason to decline
     * @return ROPE_OK, ROPE_DECLINED or an error
     */
    rope_status (*query)(const struct rope_candidate *self, const void *problem, int32_t device,
                         char *reason);
    /**
     * Prepares the kernel of a problem that query accepted. NULL: there is nothing to prepare and
     * run gets `data` as its kernel.
     * @param kernel  receives what run takes; untouched on error
     */
    rope_status (*bind)(const struct rope_candidate *self, const void *problem, int32_t device,
                        void **kernel, char *reason);
    /**
     * Bytes of device memory, 256-byte aligned, that run needs for every call within bounds, a
     * struct of the operation. NULL: none. The caller owns the memory; one call at a time uses it.
     */
    rope_status (*workspace)(const void *problem, const void *kernel, const void *bounds,
                             size_t *bytes);
    /** Runs on a stream (NULL: the backend's default); thread-safe, without allocation or lock. */
    rope_status (*run)(const void *problem, const void *kernel, const void *call, void *workspace,
                       void *stream);
    /** Releases what bind prepared; may be NULL. */
    void (*release)(void *kernel);
    /**
     * Names what runs a call that a family of kernels takes, as rope_plan_kernel_of has it. The
     * name lives as long as the backend. NULL, and NULL as the name: the candidate's own. "": run
     * does not take the call. A list whose candidate_size ends before this field has none, nor
     * those below.
     */
    const char *(*kernel_of)(const void *kernel, const void *call);
    /**
     * What run would return before it writes anything, of a call of "attention" whose last keys, as
     * many as a sequence has queries, are yet to be written. NULL: ROPE_OK.
     */
    rope_status (*check)(const void *problem, const void *kernel, const void *call, void *workspace,
                         void *stream);
    /**
     * As run, of a call of "attention" of which norms[0] are the queries' and norms[1] the keys'
     * steps ahead of their rotation, where operand t has heads, with its weights. ROPE_DECLINED
     * before anything is written: the caller normalises. NULL: it always does.
     */
    rope_status (*run_normed)(const void *problem, const void *kernel,
                              const rope_append_steps *norms, const rope_append_operand *operand,
                              const void *call, void *workspace, void *stream);
} rope_candidate;

/** Candidates, those of one operation in order of preference. */
typedef struct rope_candidate_list {
    size_t candidate_size;            /**< sizeof(rope_candidate). */
    const rope_candidate *candidates; /**< One after the other. */
    int32_t count;                    /**< Of candidates. */
} rope_candidate_list;

/** Runs one iteration of a measurement for rope_backend.time. */
typedef rope_status (*rope_iteration)(void *state, int64_t index, void *stream);

/** A variable of the environment that decides something, read once when it is first needed. */
typedef struct rope_setting {
    const char *name;                   /**< As in "ROPE_CPU_ISA". */
    const char *selects;                /**< What it selects, as in "highest instruction set". */
    const char *allowed;                /**< Text for whoever gave another value. */
    int (*is_valid)(const char *value); /**< Of a value that is not empty. */
} rope_setting;

/** A backend. */
typedef struct rope_backend {
    uint32_t abi;                            /**< ROPE_BACKEND_ABI. */
    int32_t priority;                        /**< "auto" tries the highest first; the CPU has 0. */
    size_t struct_size;                      /**< sizeof(rope_backend), or more. */
    const char *name;                        /**< As in "cpu". */
    const rope_candidate_list *const *lists; /**< One for each operation, or for several. */
    int32_t list_count;                      /**< Of lists. */
    const rope_setting *settings;            /**< That it reads, or NULL. */
    int32_t setting_count;                   /**< Of settings. */
    /** Counts devices; an error with a reason where there is none. */
    rope_status (*device_count)(int32_t *count, char *reason);
    /** Fills everything but the backend's name. */
    rope_status (*device_info)(int32_t device, rope_device_info *info);
    /** As rope_device_alloc, bytes > 0. */
    rope_status (*alloc)(int32_t device, size_t bytes, void **pointer);
    /** As rope_device_free. */
    rope_status (*free)(int32_t device, void *pointer);
    /** As rope_device_copy_in. */
    rope_status (*copy_in)(int32_t device, void *target, const void *source, size_t bytes);
    /** As rope_device_copy_out. */
    rope_status (*copy_out)(int32_t device, void *target, const void *source, size_t bytes);
    /** As rope_device_synchronize. */
    rope_status (*synchronize)(int32_t device);
    /** Times `iterations` runs by the device's clock; seconds are of one run. */
    rope_status (*time)(int32_t device, int32_t graph, int64_t iterations, rope_iteration iteration,
                        void *state, double *seconds, double *host_seconds);
} rope_backend;

/** What the library gives a plugin. */
typedef struct rope_host {
    uint32_t abi; /**< ROPE_BACKEND_ABI. */
    /** Sets the thread's error text (printf format) and returns status. */
    rope_status (*fail)(rope_status status, const char *format, ...);
} rope_host;

/** Name of the function a plugin exports. */
#define ROPE_BACKEND_ENTRY rope_backend_entry
/** Its type: returns the backend, or NULL when it cannot serve this host. */
typedef const rope_backend *(*rope_backend_entry_function)(const rope_host *host);

/** @name Operations
 * What the library knows of an operation, and plans of any: a program may bring an operation of its
 * own along with the backend that serves it.
 * @{ */

/** An operation, from its arguments to its call. */
typedef struct rope_operation {
    const char *name; /**< As candidates name it. */
    int32_t version;  /**< Of its problem, call and bounds. */
    size_t call_size; /**< Bytes of a call, 1..ROPE_MAX_CALL_SIZE. */
    /**
     * Checks arguments and fills a call. Writes nothing else.
     * @param problem  the plan's
     * @param args     the caller's struct, which begins with its struct_size
     * @param call     receives call_size bytes
     * @param stream   receives the stream that the arguments name
     * @param empty    receives 1 where there is nothing to do
     */
    rope_status (*read)(const void *problem, const void *args, void *call, void **stream,
                        int *empty);
    /** Frees a problem; may be NULL. */
    void (*release)(void *problem);
} rope_operation;

/** Where a plan runs: the fields of rope_desc of these names. */
typedef struct rope_choice {
    const char *backend; /**< NULL: ROPE_BACKEND. */
    int32_t device;      /**< >= 0. */
    const char *kernel;  /**< NULL: the first that accepts. */
} rope_choice;

/**
 * Makes a plan of any operation.
 * @param operation  lives as long as the plan
 * @param problem    taken over by the plan, which releases it; released on error too
 * @param choice     read once
 * @param plan       receives the plan; untouched on error
 * @return ROPE_OK, INVALID_VALUE, NULL_POINTER, OUT_OF_MEMORY, UNSUPPORTED, NO_BACKEND, NO_DEVICE
 * or DEVICE
 */
ROPE_API rope_status rope_plan_make(const rope_operation *operation, void *problem,
                                    const rope_choice *choice, rope_plan **plan);
/** Reads arguments of the plan's operation and runs the plan's kernel. Where a table chose one that
 * does not take the call or its workspace (UNSUPPORTED, INVALID_VALUE or OVERFLOW, nothing
 * written), the plan's first kernel runs.
 * @param plan       of rope_plan_make or rope_plan_create
 * @param args       the operation's arguments
 * @param workspace  as many bytes as rope_plan_workspace says, or NULL where that is 0
 * @return what the operation's read and the kernel's run return */
ROPE_API rope_status rope_plan_apply(const rope_plan *plan, const void *args, void *workspace);
/** What a table of measured kernels says of a call: a field of its points. */
typedef struct rope_shape_entry {
    const char *name; /**< As in "k_tokens". */
    const char *text; /**< Name of the value, or NULL: it is a number. */
    int64_t value;    /**< Of the call. */
} rope_shape_entry;
#define ROPE_SHAPE_MOST 16 /**< Fields of an operation. */
/** The fields of a call by which its kernel is chosen, without those that tables may leave out.
 * @param plan     of rope_plan_make or rope_plan_create
 * @param args     the operation's arguments
 * @param entries  receives up to ROPE_SHAPE_MOST
 * @return their number; 0 after an error, for a call that does nothing, and where the operation has
 * none */
ROPE_API int32_t rope_plan_shape(const rope_plan *plan, const void *args,
                                 rope_shape_entry *entries);
/** Bytes of workspace that calls within bounds need, by any of the plan's kernels; a table's that
 * has none for these bounds, or needs more than rope_plan_workspace_most of the first's, leaves its
 * calls to the first.
 * @return ROPE_OK, NULL_POINTER or what the first kernel's workspace returns */
ROPE_API rope_status rope_plan_workspace(const rope_plan *plan, const void *bounds, size_t *bytes);
/** Bytes that a kernel of a table may need beyond what grows with the first's. */
#define ROPE_WORKSPACE_MORE ((size_t)256 << 20)
/** What a kernel of a table may need for calls within bounds where the plan's first needs so many
 * bytes: twice as much, or of a backward of attention as much and the fp32 gradients of q, k and v
 * of every query head, whichever is more; and ROPE_WORKSPACE_MORE. */
ROPE_API size_t rope_plan_workspace_most(const rope_plan *plan, const void *bounds, size_t first);
/** Whether the plan's kernel is ROPE_BITWISE or ROPE_BOUNDED; 0 for a NULL plan. */
ROPE_API int32_t rope_plan_numerics(const rope_plan *plan);
/** @} */

#ifdef __cplusplus
}
#endif
#endif
