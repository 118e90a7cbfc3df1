/* Elements of q and k as device code sees them: bits to move, numbers to rotate. */
#ifndef ROPEKIT_GPU_ELEMENT_H
#define ROPEKIT_GPU_ELEMENT_H

#include <gpu_device_alias.h>

#include "common/half.h"

#include <ropekit/backend.h>

#define GPU_FN static __device__ __forceinline__

template <int DTYPE> struct gpu_element { typedef uint16_t bits; };
template <> struct gpu_element<ROPE_F32> { typedef uint32_t bits; };
template <> struct gpu_element<ROPE_F64> { typedef uint64_t bits; };

template <int DTYPE> GPU_FN float gpu_widen(typename gpu_element<DTYPE>::bits h) {
    if (DTYPE == ROPE_F32)
        return rope_bits_float(h);
    return DTYPE == ROPE_BF16 ? rope_from_bf16((uint16_t)h) : rope_from_f16((uint16_t)h);
}

template <int DTYPE> GPU_FN typename gpu_element<DTYPE>::bits gpu_narrow(float x) {
    if (DTYPE == ROPE_F32)
        return (typename gpu_element<DTYPE>::bits)rope_float_bits(x);
    return DTYPE == ROPE_BF16 ? rope_to_bf16(x) : rope_to_f16(x);
}

/* V elements as they lie in memory. */
template <int WORDS> struct gpu_word_type;
template <> struct gpu_word_type<1> { typedef unsigned type; };
template <> struct gpu_word_type<2> { typedef uint2 type; };
template <> struct gpu_word_type<4> { typedef uint4 type; };

template <int DTYPE, int V> struct gpu_vector {
    enum { WORDS = V * (int)sizeof(typename gpu_element<DTYPE>::bits) / 4 };
    uint32_t word[WORDS];
};

template <int DTYPE, int V, bool STREAM> GPU_FN gpu_vector<DTYPE, V> gpu_load(const void *p) {
    typedef typename gpu_word_type<gpu_vector<DTYPE, V>::WORDS>::type type;
    type raw = STREAM ? gpu_load_streaming((const type *)p) : *(const type *)p;
    gpu_vector<DTYPE, V> v;
    memcpy(&v, &raw, sizeof v);
    return v;
}

template <int DTYPE, int V, bool STREAM>
GPU_FN void gpu_store(void *p, const gpu_vector<DTYPE, V> &v) {
    typedef typename gpu_word_type<gpu_vector<DTYPE, V>::WORDS>::type type;
    type raw;
    memcpy(&raw, &v, sizeof v);
    if (STREAM)
        gpu_store_streaming((type *)p, raw);
    else
        *(type *)p = raw;
}

template <int DTYPE, int V> GPU_FN void gpu_unpack(const gpu_vector<DTYPE, V> &v, float x[V]) {
#pragma unroll
    for (int i = 0; i < gpu_vector<DTYPE, V>::WORDS; i++) {
        if (DTYPE == ROPE_F32) {
            x[i] = rope_bits_float(v.word[i]);
        } else if (DTYPE == ROPE_BF16) {
            x[2 * i] = rope_bits_float(v.word[i] << 16);
            x[2 * i + 1] = rope_bits_float(v.word[i] & 0xffff0000u);
        } else {
            float2 two = gpu_split_f16(v.word[i]);
            x[2 * i] = two.x;
            x[2 * i + 1] = two.y;
        }
    }
}

template <int DTYPE, int V> GPU_FN gpu_vector<DTYPE, V> gpu_pack(const float x[V]) {
    gpu_vector<DTYPE, V> v;
#pragma unroll
    for (int i = 0; i < gpu_vector<DTYPE, V>::WORDS; i++) {
        if (DTYPE == ROPE_F32)
            v.word[i] = rope_float_bits(x[i]);
        else if (DTYPE == ROPE_BF16)
            v.word[i] = gpu_join_bf16(x[2 * i], x[2 * i + 1]);
        else
            v.word[i] = gpu_join_f16(x[2 * i], x[2 * i + 1]);
    }
    return v;
}

#endif
