/* Elements of q and k as device code sees them: bits to move, numbers to rotate. */
#ifndef ROPEKIT_GPU_ELEMENT_H
#define ROPEKIT_GPU_ELEMENT_H

#include "backends/gpu/platform/device_code.h"
#include "backends/gpu/platform/tuning.h"

#include "common/math/half.h"
#include "common/math/rotate.h"

#include <ropekit/backend.h>

#define GPU_FN static __device__ __forceinline__

/* log2(e) and ln(2). */
constexpr float GPU_LOG2_E = 1.44269504f, GPU_LN_2 = 0.693147182f;

/* Bits in memory, the number they stand for, a pair's coefficients. */
template <int DTYPE> struct gpu_element {
    typedef uint16_t bits;
    typedef float real;
    typedef rope_pair pair;
    typedef rope_coefficients coefficients;
};
template <> struct gpu_element<ROPE_F32> {
    typedef uint32_t bits;
    typedef float real;
    typedef rope_pair pair;
    typedef rope_coefficients coefficients;
};
template <> struct gpu_element<ROPE_F64> {
    typedef uint64_t bits;
    typedef double real;
    typedef rope_pair64 pair;
    typedef rope_coefficients64 coefficients;
};

/* Numbers of f16 by one instruction, NaNs as common/math/half.h has them. */
template <int DTYPE> GPU_FN float gpu_widen(typename gpu_element<DTYPE>::bits h) {
    if constexpr (DTYPE == ROPE_F32)
        return rope_bits_float(h);
    else if constexpr (DTYPE == ROPE_BF16)
        return rope_from_bf16(h);
    else
        return (h & 0x7fffu) > 0x7c00u ? rope_from_f16(h) : gpu_split_f16(h).x;
}

template <int DTYPE> GPU_FN typename gpu_element<DTYPE>::bits gpu_narrow(float x) {
    if constexpr (DTYPE == ROPE_F32)
        return rope_float_bits(x);
    else if constexpr (DTYPE == ROPE_BF16)
        return rope_to_bf16(x);
    else
        return (rope_float_bits(x) & 0x7fffffffu) > 0x7f800000u ? rope_to_f16(x)
                                                                : (uint16_t)gpu_join_f16(x, 0);
}

/* Two 16-bit numbers of a word, the first in its low half. */
template <int DTYPE> GPU_FN float2 gpu_split(uint32_t word) {
    if constexpr (DTYPE == ROPE_F16)
        return gpu_split_f16(word);
    else
        return {rope_bits_float(word << 16), rope_bits_float(word & 0xffff0000u)};
}

template <int DTYPE> GPU_FN uint32_t gpu_join(float low, float high) {
    if constexpr (DTYPE == ROPE_F16)
        return gpu_join_f16(low, high);
    else
        return gpu_join_bf16(low, high);
}

/* V elements as they lie in memory, moved 16 bytes at a time at most. */
template <int WORDS> struct gpu_word_type;
template <> struct gpu_word_type<1> { typedef unsigned type; };
template <> struct gpu_word_type<2> { typedef uint2 type; };
template <> struct gpu_word_type<4> { typedef uint4 type; };

template <int DTYPE, int V> struct gpu_vector {
    enum {
        WORDS = V * (int)sizeof(typename gpu_element<DTYPE>::bits) / 4,
        RUN = WORDS < 4 ? WORDS : 4
    };
    uint32_t word[WORDS];
};

template <int DTYPE, int V> GPU_FN gpu_vector<DTYPE, V> gpu_load(const void *p) {
    typedef gpu_vector<DTYPE, V> vector;
    typedef typename gpu_word_type<vector::RUN>::type type;
    vector v;
#pragma unroll
    for (int i = 0; i < vector::WORDS / vector::RUN; i++) {
        type raw = ((const type *)p)[i];
        memcpy(v.word + i * vector::RUN, &raw, sizeof raw);
    }
    return v;
}

template <int DTYPE, int V> GPU_FN void gpu_store(void *p, const gpu_vector<DTYPE, V> &v) {
    typedef gpu_vector<DTYPE, V> vector;
    typedef typename gpu_word_type<vector::RUN>::type type;
#pragma unroll
    for (int i = 0; i < vector::WORDS / vector::RUN; i++) {
        type raw;
        memcpy((void *)&raw, v.word + i * vector::RUN, sizeof raw);
        ((type *)p)[i] = raw;
    }
}

template <int DTYPE, int V>
GPU_FN void gpu_unpack(const gpu_vector<DTYPE, V> &v, typename gpu_element<DTYPE>::real x[V]) {
    if constexpr (DTYPE == ROPE_F32 || DTYPE == ROPE_F64) {
        memcpy(x, v.word, sizeof v);
    } else {
#pragma unroll
        for (int i = 0; i < gpu_vector<DTYPE, V>::WORDS; i++) {
            float2 two = gpu_split<DTYPE>(v.word[i]);
            x[2 * i] = two.x;
            x[2 * i + 1] = two.y;
        }
    }
}

template <int DTYPE, int V>
GPU_FN gpu_vector<DTYPE, V> gpu_pack(const typename gpu_element<DTYPE>::real x[V]) {
    gpu_vector<DTYPE, V> v;
    if constexpr (DTYPE == ROPE_F32 || DTYPE == ROPE_F64) {
        memcpy(v.word, x, sizeof v);
    } else {
#pragma unroll
        for (int i = 0; i < gpu_vector<DTYPE, V>::WORDS; i++)
            v.word[i] = gpu_join<DTYPE>(x[2 * i], x[2 * i + 1]);
    }
    return v;
}

/* The nearest numbers of a 16-bit dtype to two others. */
template <int DTYPE> GPU_FN float2 gpu_round(float a, float b) {
    if constexpr (DTYPE == ROPE_F32)
        return {a, b};
    else
        return gpu_split<DTYPE>(gpu_join<DTYPE>(a, b));
}

/* N numbers side by side. */
template <int N> GPU_FN void gpu_read_numbers(const float *from, float x[N]) {
    static_assert(N == 2 || N == 4, "a vector");
    typedef typename gpu_word_type<N>::type type;
    const type raw = *(const type *)(const void *)from;
    memcpy(x, &raw, sizeof raw);
}

template <int N> GPU_FN void gpu_write_numbers(float *to, const float x[N]) {
    static_assert(N == 2 || N == 4, "a vector");
    typedef typename gpu_word_type<N>::type type;
    type raw;
    memcpy((void *)&raw, x, sizeof raw);
    *(type *)(void *)to = raw;
}

GPU_FN bool gpu_is_finite(float x) {
    return fabsf(x) <= 0x1.fffffep+127f;
}

#endif
