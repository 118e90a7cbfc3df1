/* Keys and values of a cache, gathered to rows: of any type, in pages of any size. */
#include "backends/gpu/attention/gather.h"
#include "backends/gpu/attention/key_address.h"
#include "backends/gpu/cache_element.h"

/* Slots of a sequence that a block gathers, and where they are cached; page -1: a zero. */
struct gpu_gather_slots {
    int64_t sequence, first;
    int count;
    const gpu_key_place *place;
};

/* Slots that are gathered of a sequence: whole tiles of which some are used, all of a ring. */
GPU_FN rope_key_range gpu_gather_range(const rope_attention_problem *p,
                                       const rope_attention_call *call, const gpu_gathering *g,
                                       const rope_attention_sequence *s, rope_key_range used) {
    const int64_t tile = g->tile;
    if (s->fails || s->q_count * gpu_attention_group(call) <= g->few || used.begin >= used.end)
        return {0, 0};
    return gpu_within(
        {0, call->k_tokens},
        p->ring ? rope_key_range{0, p->ring}
                : rope_key_range{used.begin / tile * tile, (used.end + tile - 1) / tile * tile});
}

/* Where a slot is cached that is used, in a page that the cache has. */
GPU_FN gpu_key_place gpu_gather_place(const rope_attention_problem *p,
                                      const rope_attention_call *call,
                                      const rope_attention_sequence *s, rope_key_range used,
                                      int64_t slot) {
    const int64_t begin = p->ring ? used.begin % p->ring : used.begin;
    if (!gpu_slots_meet(p->ring, {slot, slot + 1}, begin, used.end - used.begin))
        return {-1, 0};
    const gpu_key_place place = gpu_cached_from(p, call, s, gpu_key_origin_of(p, slot), 0);
    return {place.page < call->pages ? place.page : -1, place.slot};
}

GPU_FN gpu_attention_head gpu_gather_head(const rope_attention_call *call,
                                          const rope_append_operand *o,
                                          const rope_append_steps *steps,
                                          const gpu_key_place &place, int head) {
    const int64_t *stride = o->cache_stride;
    return {place.page * stride[0] + place.slot * stride[1] + head * stride[2],
            gpu_place_scale(call, o, steps, place.page, place.slot, head)};
}

/* Heads in vectors of eight elements, of which a thread has several on their way. Up to eight
 * threads have a head, as many as divide its vectors. */
template <int DTYPE>
GPU_FN void gpu_gather_vectors(const rope_attention_call *call, const rope_append_operand *o,
                               const rope_append_steps *steps, const gpu_gather_slots &slots,
                               char *out) {
    enum { SOME = 4, MOST = 8 };
    const int dim = steps->head_dim, eights = dim / GPU_STORED, heads = (int)o->heads,
              threads = eights % MOST ? eights & -eights : (int)MOST, step = threads * GPU_STORED,
              type = steps->store_dtype,
              bytes = type >= ROPE_F8E4M3 ? 1
                      : type == ROPE_F32  ? 4
                                          : 2;
    for (int row = (int)threadIdx.x / threads; row < slots.count * heads;
         row += GPU_ATTENTION_THREADS / threads) {
        const gpu_key_place place = slots.place[row / heads];
        const bool there = place.page >= 0;
        gpu_attention_head h = {0, 1};
        if (there)
            h = gpu_gather_head(call, o, steps, place, row % heads);
        const char *from = (const char *)o->cache + h.at * bytes;
        char *to = out + (int64_t)row * dim * 2;
        for (int i = (int)threadIdx.x % threads * GPU_STORED; i < dim; i += SOME * step) {
            gpu_vector<DTYPE, GPU_STORED> x[SOME];
#pragma unroll
            for (int j = 0; j < SOME; j++) {
                x[j] = {};
                if (there && i + j * step < dim)
                    x[j] = gpu_load_vector_as<DTYPE>(type, from + (i + j * step) * bytes);
            }
#pragma unroll
            for (int j = 0; j < SOME; j++) {
                if (i + j * step >= dim)
                    break;
                if (bytes == 1)
                    x[j] = gpu_dequantize<DTYPE>(type, h.scale, x[j]);
                gpu_store<DTYPE, GPU_STORED>(to + (i + j * step) * 2, x[j]);
            }
        }
    }
}

/* Heads in any layout. */
template <int DTYPE>
GPU_FN void gpu_gather_elements(const rope_attention_call *call, const rope_append_operand *o,
                                const rope_append_steps *steps, const gpu_gather_slots &slots,
                                char *out) {
    typedef typename gpu_element<DTYPE>::bits bits;
    const int dim = steps->head_dim, each = (int)o->heads * dim;
    for (int n = (int)threadIdx.x; n < slots.count * each; n += GPU_ATTENTION_THREADS) {
        const gpu_key_place place = slots.place[n / each];
        const int within = n % each;
        float x = 0;
        if (place.page >= 0)
            x = gpu_cached_element<DTYPE>(
                o, steps, gpu_gather_head(call, o, steps, place, within / dim), within % dim);
        ((bits *)(void *)out)[n] = gpu_narrow<DTYPE>(x);
    }
}

/* moves: heads lie in vectors. */
template <int DTYPE>
GPU_FN void gpu_gather(const rope_attention_call *call, const rope_append_operand *o,
                       const rope_append_steps *steps, bool moves, const gpu_gather_slots &slots,
                       const gpu_gathered &to) {
    char *out = (char *)to.data +
                2 * (slots.sequence * to.tokens + slots.first) * o->heads * steps->head_dim;
    if (to.data && moves)
        gpu_gather_vectors<DTYPE>(call, o, steps, slots, out);
    else if (to.data)
        gpu_gather_elements<DTYPE>(call, o, steps, slots, out);
}

template <int DTYPE>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, 6)
    gpu_attention_gather(GPU_PARAMETER rope_attention_problem problem,
                         GPU_PARAMETER rope_attention_call given,
                         GPU_PARAMETER gpu_gathering gathering) {
    const rope_attention_problem *p = gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_call *call =
        gpu_parameter<rope_attention_call, rope_attention_problem>(given);
    const gpu_gathering *g =
        gpu_parameter<gpu_gathering, rope_attention_problem, rope_attention_call>(gathering);
    __shared__ gpu_key_place place[GPU_GATHERED];
    const int64_t parts = (call->k_tokens + GPU_GATHERED - 1) / GPU_GATHERED,
                  all = rope_attention_sequences(call) * parts;
    gpu_wait_for_last();
    gpu_let_next_start();
    for (int64_t n = blockIdx.x, ahead; n < all;
         n += (ahead + gridDim.x - 1) / gridDim.x * gridDim.x) {
        const rope_attention_sequence s =
            rope_attention_sequence_of(gpu_reread(p), gpu_reread(call), gpu_own(n / parts));
        const rope_key_range used = gpu_keys_used(gpu_reread(p), &s),
                             range = gpu_gather_range(gpu_reread(p), gpu_reread(call), g, &s, used);
        const int64_t part = n % parts, first = part * GPU_GATHERED;
        ahead = first >= range.end ? parts - part : range.begin / GPU_GATHERED - part;
        if (ahead > 0)
            continue;
        ahead = 1;
        const gpu_gather_slots slots = {
            s.index, first, (int)gpu_within({0, GPU_GATHERED}, {0, range.end - first}).end, place};
        __syncthreads();
        if ((int)threadIdx.x < slots.count)
            place[threadIdx.x] =
                gpu_gather_place(gpu_reread(p), gpu_reread(call), &s, used, first + threadIdx.x);
        __syncthreads();
        gpu_gather<DTYPE>(gpu_reread(call), &gpu_reread(call)->k, &gpu_reread(p)->k, g->k_moves,
                          slots, g->keys);
        gpu_gather<DTYPE>(gpu_reread(call), &gpu_reread(call)->v, &gpu_reread(p)->v, g->v_moves,
                          slots, g->values);
    }
}

const void *const gpu_attention_gather_kernels[2] = {GPU_KERNEL(gpu_attention_gather<ROPE_F16>),
                                                     GPU_KERNEL(gpu_attention_gather<ROPE_BF16>)};
