/* From a fuzzer's bytes to the fields of a descriptor and of a call over a small buffer. Pointers
 * stay null or point at memory that is large enough for every size that the bytes can name, so
 * whatever the library accepts it may also read and write. */
#ifndef ROPEKIT_BENCH_FUZZ_FIELDS_H
#define ROPEKIT_BENCH_FUZZ_FIELDS_H

#include "bench/options/options.h"

/* Largest batch, tokens, heads, stride and head_dim that the bytes name. */
#define FUZZ_SIZE_MOST 7
#define FUZZ_DIM_MOST 64
#define FUZZ_STRIDE_MOST 255
#define FUZZ_ROWS 64
/* Strides of a scale, of ids of keys and of a tree's bits, and entries that a scale's can reach. */
#define FUZZ_SMALL_STRIDE_MOST 15
#define FUZZ_SCALES 512
/* Elements that the strides of a tensor and of a cache can reach. */
#define FUZZ_TENSOR_ELEMENTS (FUZZ_STRIDE_MOST * (3 * FUZZ_SIZE_MOST + FUZZ_DIM_MOST))
#define FUZZ_CACHE_ELEMENTS (FUZZ_STRIDE_MOST * (3 * FUZZ_SIZE_MOST + 2 * FUZZ_DIM_MOST))

typedef struct fuzz_bytes {
    const uint8_t *next, *end;
} fuzz_bytes;

/* Index arrays of a call: a few values that the bytes name, then zeros. */
extern int64_t fuzz_indices[4][FUZZ_ROWS * FUZZ_ROWS];

/* 0..most; 0 past the end. */
int32_t fuzz_take(fuzz_bytes *b, int32_t most);
/* A number that is 0 half of the time. */
int32_t fuzz_take_some(fuzz_bytes *b, int32_t most);
/* A number that is often a plain one and sometimes any bit pattern. */
double fuzz_take_number(fuzz_bytes *b);

/* The fields of the tool's table that lie in `size` bytes of options from an offset on, at times
 * beyond what they may hold, but small enough for the buffers. */
void fuzz_take_fields(fuzz_bytes *b, options *o, size_t offset, size_t size);
/* A descriptor of rope on the CPU; mostly a plain one where another has it. */
rope_desc fuzz_take_desc(fuzz_bytes *b, bool whole);
/* Without what only a rotation reads. */
rope_desc fuzz_without_rotation(const rope_desc *d);

/* n strides of 0..most, or none. */
void fuzz_take_strides(fuzz_bytes *b, int64_t *stride, int n, int32_t most);
void fuzz_take_tensor(fuzz_bytes *b, rope_tensor *t, void *in, void *out);
/* A scale of a ROPE_SCALE_ kind, in FUZZ_SCALES entries of `data`. */
void fuzz_take_scale(fuzz_bytes *b, int32_t kind, float *data, rope_scale *scale);
void fuzz_take_args(fuzz_bytes *b, rope_args *a);

/* What nothing would read is refused, so that most calls leave it out. */
void fuzz_drop_unread(const rope_desc *d, rope_args *a);

#endif
