/* Keys and values of a cache, gathered to rows of sequences, of the call's type: once each, where
 * several tiles of queries would convert them, or find their small pages, one by one. */
#ifndef ROPEKIT_GPU_ATTENTION_GATHER_H
#define ROPEKIT_GPU_ATTENTION_GATHER_H

#include "backends/gpu/attention/sizes.h"
#include "backends/gpu/platform/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows, [sequence, key, head, element], of so many keys of each; a ring's in its slots. NULL: what
 * they would hold stays where it is. */
typedef struct gpu_gathered {
    void *data;
    int64_t tokens;
} gpu_gathered;

/* Kernels to f16 and to bf16 take (rope_attention_problem, rope_attention_call, gpu_gathering): a
 * block of GPU_ATTENTION_THREADS threads has GPU_GATHERED keys of a sequence. Keys that no query
 * uses become zeros in tiles of `tile` of which some key is used; pages that the cache lacks too.
 */
enum { GPU_GATHERED = 16 };
typedef struct gpu_gathering {
    gpu_gathered keys, values;
    int32_t few;              /* sequences of at most so many rows of queries are left out */
    int32_t tile;             /* 1 with a ring */
    int32_t k_moves, v_moves; /* keys, values lie in vectors of eight elements */
} gpu_gathering;
extern const void *const gpu_attention_gather_kernels[2];

/* What is gathered and attended to at a time: sequences, and heads of their keys. */
typedef struct gpu_attention_part {
    int64_t sequence, sequences, head, heads;
} gpu_attention_part;

/* Whether keys or values of a cache have another type than a problem's, or lie in blocks. */
int gpu_attention_converts(const rope_attention_problem *problem);

/* Whether a call that converts them, or that it pays to have gathered, gathers them, all together
 * or in parts. packed: in parts also those of packed sequences that have many rows of queries. */
int gpu_attention_gathers(const rope_attention_problem *problem, const rope_attention_call *call,
                          int packed);

/* Whether a call whose sequences all use what is gathered, also those of few queries, converts some
 * that are not yet gathered, and has room for a head of a sequence. */
int gpu_attention_gathers_for_all(const rope_attention_problem *problem,
                                  const rope_attention_call *call);

/* Whether those of a call have room together. */
int gpu_attention_gathers_at_once(const rope_attention_problem *problem,
                                  const rope_attention_call *call);

/* Bytes of the largest part of calls up to these sizes; for_all: of those for all. */
double gpu_attention_gathered(const rope_attention_problem *problem,
                              const gpu_attention_sizes *sizes, int for_all);

/* From nothing to the first part of a call, from one to the next; 0: there is none. */
int gpu_attention_next_part(const rope_attention_problem *problem, const rope_attention_call *call,
                            gpu_attention_part *part);

/* A call of a part alone, whose queries are rotated, or by angles that are known. */
rope_attention_call gpu_attention_part_of(const rope_attention_problem *problem,
                                          const rope_attention_call *call,
                                          const gpu_attention_part *part);

/* GPU_TILE_ of what is gathered. */
int32_t gpu_attention_gathered_fits(const rope_attention_problem *problem,
                                    const rope_attention_call *call);

/* Rows for what is gathered of a call's keys, which become those of its k.out, and of its values,
 * unless those are elements of keys. all: whatever their type. */
gpu_gathering gpu_attention_gathering(const rope_attention_problem *problem,
                                      rope_attention_call *call, void *memory, int all);

/* blocks: the most. */
gpuError_t gpu_attention_launch_gather(const rope_attention_problem *problem,
                                       const rope_attention_call *call, const gpu_gathering *how,
                                       int64_t blocks, gpuStream_t stream, int early);

#ifdef __cplusplus
}
#endif
#endif
