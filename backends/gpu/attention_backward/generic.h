/*
 * Every descriptor, in fp32: a block has rows or keys of its own and goes over tiles of the others,
 * one a thread. A thread has some of the block's own, first by some of the others of a tile, whose
 * products it sums, then by fours of columns of the gradients. Tiles begin at multiples of
 * GPU_ATTENTION_THREADS, and what does not see has no weight, so the bits of a gradient do not
 * depend on what has nothing to do with it.
 */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_GENERIC_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_GENERIC_H

#include "backends/gpu/attention/tile_shape.h"
#include "backends/gpu/attention_backward/block.h"

/* The shape of a block that has room for heads of DIM elements. GPU_COLUMN_LANES threads side by
 * side share one of the block's own, by others or by columns. */
template <int DIM> struct gpu_backward_shape {
    enum {
        ROWS = GPU_GENERIC_ROWS(DIM),                          /* of the block's own */
        OWN = ROWS * GPU_COLUMN_LANES / GPU_ATTENTION_THREADS, /* of a thread */
        OTHERS = GPU_ATTENTION_THREADS / GPU_COLUMN_LANES, /* of a thread, GPU_COLUMN_LANES apart */
        COLUMNS = DIM / (4 * GPU_COLUMN_LANES),            /* fours of them */
        VALUES =
            GPU_GENERIC_VALUES(GPU_GENERIC_ROWS(DIM), DIM), /* others that are added at a time */
        WEIGHTS = GPU_BACKWARD_WEIGHTS(DIM)                 /* numbers between two others */
    };
};

/* Items side by side. */
template <int N> struct gpu_backward_heads {
    int64_t at[2][N];
    rope_key_range seen[N];
    float lse[N], delta[N];
};

/* Shared memory of a block. */
struct gpu_backward_generic_block {
    gpu_attention_tile tile;
    gpu_backward_heads<GPU_GENERIC_ROWS_MOST> own;
    gpu_backward_heads<GPU_ATTENTION_THREADS> others;
    rope_token tokens[GPU_GENERIC_ROWS_MOST];
    /* by the thread's own that see or are seen by another */
    uint8_t sees[GPU_ATTENTION_THREADS][GPU_ATTENTION_THREADS / GPU_COLUMN_LANES];
    int64_t to[2][GPU_GENERIC_ROWS_MOST];
    int64_t begin, end; /* others that may count */
    int64_t head, next; /* of keys; what comes next */
    int32_t special;    /* the last addition, counted, of which a number is not finite */
};

/* The block's dynamic shared memory: elements of its own and of others, weights [other][own]. */
struct gpu_backward_memory {
    float *own, *others, *weights;
};

struct gpu_backward_generic_call {
    gpu_backward_call of;
    gpu_backward_generic_block *b;
    gpu_backward_memory m;
    int32_t fits; /* GPU_BACKWARD_ */
};

/* Sums of a thread's own, by columns. */
template <int DIM> struct gpu_backward_sums {
    typedef gpu_backward_shape<DIM> shape;
    float of[shape::OWN][shape::COLUMNS][4];
};

/* The first of a thread's own, of its others, and of its columns. */
template <int DIM> GPU_FN int gpu_backward_first_own(void) {
    return gpu_thread() / GPU_COLUMN_LANES * gpu_backward_shape<DIM>::OWN;
}

GPU_FN int gpu_backward_lane(void) {
    return gpu_thread() % GPU_COLUMN_LANES;
}

/* --- elements --- */

template <int N>
GPU_FN void gpu_backward_put(const gpu_backward_item &item, gpu_backward_heads<N> *heads, int n) {
    heads->at[0][n] = item.at[0];
    heads->at[1][n] = item.at[1];
    heads->seen[n] = item.seen;
    heads->lse[n] = item.lse;
    heads->delta[n] = item.delta;
}

/* Elements first..first + WIDTH - 1 of N heads, `stride` numbers apart, 0 for those that are not
 * there; whether all are finite. They move in vectors, as many under way as registers hold. */
template <int DTYPE, int N, int WIDTH>
GPU_FN bool gpu_backward_move(const void *data, const int64_t *at, int first, int dim, float *to,
                              int stride) {
    enum {
        V = DTYPE == ROPE_F32 ? 4 : 8,
        SIZE = DTYPE == ROPE_F32 ? 4 : 2,
        COUNT = N * WIDTH / V,
        TURNS = (COUNT + GPU_ATTENTION_THREADS - 1) / GPU_ATTENTION_THREADS,
        STEP = TURNS < GPU_BACKWARD_LOADS ? TURNS : GPU_BACKWARD_LOADS
    };
    bool finite = true;
#pragma unroll 1
    for (int begin = gpu_thread(); begin < COUNT; begin += STEP * GPU_ATTENTION_THREADS) {
        gpu_vector<DTYPE, V> v[STEP];
#pragma unroll
        for (int turn = 0; turn < STEP; turn++) {
            const int e = begin + turn * GPU_ATTENTION_THREADS, n = e / (WIDTH / V),
                      i = first + e % (WIDTH / V) * V;
            const bool inside =
                (COUNT % (STEP * GPU_ATTENTION_THREADS) == 0 || e < COUNT) && i < dim;
            const int64_t from = inside ? at[n] : GPU_BACKWARD_NOWHERE;
            v[turn] = {};
            if (from != GPU_BACKWARD_NOWHERE)
                v[turn] = gpu_load<DTYPE, V>((const char *)data + (from + i) * SIZE);
        }
#pragma unroll
        for (int turn = 0; turn < STEP; turn++) {
            const int e = begin + turn * GPU_ATTENTION_THREADS, n = e / (WIDTH / V),
                      i = e % (WIDTH / V) * V;
            float x[V];
            if (COUNT % (STEP * GPU_ATTENTION_THREADS) != 0 && e >= COUNT)
                break;
            gpu_unpack<DTYPE, V>(v[turn], x);
#pragma unroll
            for (int k = 0; k < V; k += 4)
                gpu_write_numbers<4>(to + n * stride + i + k, x + k);
#pragma unroll
            for (int k = 0; k < V; k++)
                finite &= gpu_is_finite(x[k]);
        }
    }
    return finite;
}

/* Reads those of the block's own, or of the others from `head` of the tile on, wherever elements
 * lie. */
template <int DTYPE, int KEYS, int N, int WIDTH>
GPU_FN bool gpu_backward_read(const gpu_backward_generic_call &t, const int64_t *at, int which,
                              int first, float *to, int stride) {
    typedef typename gpu_element<DTYPE>::bits bits;
    const rope_attention_backward_call *c = gpu_reread(t.of.call);
    const int dim = which ? gpu_reread(t.of.p)->v_head_dim : gpu_reread(t.of.p)->head_dim;
    const bits *data = gpu_backward_data<DTYPE>(c, KEYS, which);
    if (gpu_reread(t.fits) & (1 << (2 * KEYS + which)))
        return gpu_backward_move<DTYPE, N, WIDTH>(data, at, first, dim, to, stride);
    const int64_t step = gpu_backward_stride(c, KEYS, which)[3];
    bool finite = true;
#pragma unroll 1
    for (int e = gpu_thread(); e < N * WIDTH; e += GPU_ATTENTION_THREADS) {
        const int n = e / WIDTH, i = first + e % WIDTH;
        const float x =
            i < dim && at[n] != GPU_BACKWARD_NOWHERE ? gpu_widen<DTYPE>(data[at[n] + i * step]) : 0;
        to[n * stride + e % WIDTH] = x;
        finite &= gpu_is_finite(x);
    }
    return finite;
}

/* --- a tile --- */

/* Which of the others a tile from `first` on has. */
template <int KEYS>
GPU_FN void gpu_backward_others(const gpu_backward_generic_call &t, int64_t first) {
    gpu_backward_generic_block *b = t.b;
    const int64_t n = first + gpu_thread();
    gpu_backward_item item = {{GPU_BACKWARD_NOWHERE, GPU_BACKWARD_NOWHERE}, 0, {0, 0}, 0, 0};
    if (n >= b->begin && n < b->end)
        item = KEYS ? gpu_backward_row(t.of, &b->tile.s, b->head, n,
                                       (rope_token *)(void *)t.m.others + threadIdx.x)
                    : gpu_backward_key(t.of, &b->tile.s, b->head, n);
    gpu_backward_put(item, &b->others, gpu_thread());
    __syncthreads();
}

/* A thread's own numbers of an other, from where those of all others lie. */
template <int DIM> GPU_FN float *gpu_backward_of(float *all, int other) {
    return all + other * gpu_backward_shape<DIM>::WEIGHTS + gpu_backward_first_own<DIM>();
}

template <int DIM>
GPU_FN void
gpu_backward_clear(float (&x)[gpu_backward_shape<DIM>::OWN][gpu_backward_shape<DIM>::OTHERS]) {
#pragma unroll
    for (int r = 0; r < gpu_backward_shape<DIM>::OWN; r++)
#pragma unroll
        for (int c = 0; c < gpu_backward_shape<DIM>::OTHERS; c++)
            x[r][c] = 0;
}

/* adds: to what is there. */
template <int DIM>
GPU_FN void
gpu_backward_keep(float *all, bool adds,
                  const float (&x)[gpu_backward_shape<DIM>::OWN][gpu_backward_shape<DIM>::OTHERS]) {
    enum { OWN = gpu_backward_shape<DIM>::OWN };
#pragma unroll
    for (int c = 0; c < gpu_backward_shape<DIM>::OTHERS; c++) {
        float own[OWN], *at = gpu_backward_of<DIM>(all, gpu_backward_lane() + c * GPU_COLUMN_LANES);
        gpu_read_numbers<OWN>(at, own);
#pragma unroll
        for (int r = 0; r < OWN; r++)
            own[r] = adds ? own[r] + x[r][c] : x[r][c];
        gpu_write_numbers<OWN>(at, own);
    }
}

template <int DIM>
GPU_FN void
gpu_backward_take(float *all,
                  float (&x)[gpu_backward_shape<DIM>::OWN][gpu_backward_shape<DIM>::OTHERS]) {
    enum { OWN = gpu_backward_shape<DIM>::OWN };
#pragma unroll
    for (int c = 0; c < gpu_backward_shape<DIM>::OTHERS; c++) {
        float own[OWN];
        gpu_read_numbers<OWN>(gpu_backward_of<DIM>(all, gpu_backward_lane() + c * GPU_COLUMN_LANES),
                              own);
#pragma unroll
        for (int r = 0; r < OWN; r++)
            x[r][c] = own[r];
    }
}

/* Products of a thread's own and others: scores, or of dout and v. Scores are sums of those of
 * GPU_BACKWARD_DEPTH elements each, as the forward's, and kept in weights. */
template <int DTYPE, int DIM, int KEYS>
GPU_FN void
gpu_backward_products(const gpu_backward_generic_call &t, int which,
                      float (&x)[gpu_backward_shape<DIM>::OWN][gpu_backward_shape<DIM>::OTHERS]) {
    typedef gpu_backward_shape<DIM> shape;
    enum { STRIDE = GPU_BACKWARD_HEAD, OWN = shape::OWN };
    const int dim = which ? gpu_reread(t.of.p)->v_head_dim : gpu_reread(t.of.p)->head_dim;
    gpu_backward_clear<DIM>(x);
#pragma unroll 1
    for (int first = 0; first < dim; first += GPU_BACKWARD_DEPTH) {
        (void)gpu_backward_read<DTYPE, KEYS, shape::ROWS, GPU_BACKWARD_DEPTH>(
            t, t.b->own.at[which], which, first, t.m.own, STRIDE);
        (void)gpu_backward_read<DTYPE, !KEYS, GPU_ATTENTION_THREADS, GPU_BACKWARD_DEPTH>(
            t, t.b->others.at[which], which, first, t.m.others, STRIDE);
        __syncthreads();
        const float *own = t.m.own + gpu_backward_first_own<DIM>() * STRIDE,
                    *others = t.m.others + gpu_backward_lane() * STRIDE;
#pragma unroll 1
        for (int i = 0; i < GPU_BACKWARD_DEPTH; i += 4) {
            float a[OWN][4];
#pragma unroll
            for (int r = 0; r < OWN; r++)
                gpu_read_numbers<4>(own + r * STRIDE + i, a[r]);
#pragma unroll
            for (int c = 0; c < shape::OTHERS; c++) {
                float b[4];
                gpu_read_numbers<4>(others + c * GPU_COLUMN_LANES * STRIDE + i, b);
#pragma unroll
                for (int e = 0; e < 4; e++)
#pragma unroll
                    for (int r = 0; r < OWN; r++)
                        x[r][c] = fmaf(a[r][e], b[e], x[r][c]);
            }
        }
        __syncthreads();
        if (!which) {
            gpu_backward_keep<DIM>(t.m.weights, first > 0, x);
            gpu_backward_clear<DIM>(x);
        }
    }
}

/* From a score and dp to a weight; dp becomes the gradient of the score. */
GPU_FN float gpu_backward_weight(const rope_attention_problem *p, float score, float lse,
                                 float delta, bool seen, float *dp) {
    float x = score * p->scale, slope = 1;
    if (p->soft_cap > 0) {
        const float tanh = tanhf(x / p->soft_cap);
        x = p->soft_cap * tanh;
        slope = fmaf(-tanh, tanh, 1.0f);
    }
    const float weight = seen ? expf(x - lse) : 0;
    *dp = seen ? weight * (*dp - delta) * slope : 0;
    return weight;
}

/* Keys that a row sees, from `first` on. */
struct gpu_backward_near_keys {
    int32_t first, last;
};

GPU_FN gpu_backward_near_keys gpu_backward_from(rope_key_range seen, int64_t first) {
    return {gpu_backward_near(seen.begin, first), gpu_backward_near(seen.end, first)};
}

/* From scores where weights lie and dp where others lie to weights and to gradients of scores
 * there; a thread's own stay its own. first: of the block's own keys, or of the tile's. */
template <int DIM, int KEYS>
GPU_FN void gpu_backward_weigh(const gpu_backward_generic_call &t, int64_t first) {
    typedef gpu_backward_shape<DIM> shape;
    const gpu_backward_generic_block *b = t.b;
    const int own = gpu_backward_first_own<DIM>();
#pragma unroll 1
    for (int n = gpu_backward_lane(); n < GPU_ATTENTION_THREADS; n += GPU_COLUMN_LANES) {
        float *weights = gpu_backward_of<DIM>(t.m.weights, n),
              *gradients = gpu_backward_of<DIM>(t.m.others, n), s[shape::OWN], dp[shape::OWN];
        gpu_read_numbers<shape::OWN>(weights, s);
        gpu_read_numbers<shape::OWN>(gradients, dp);
        uint32_t sees = 0;
#pragma unroll
        for (int r = 0; r < shape::OWN; r++) {
            const int key = KEYS ? own + r : n;
            const gpu_backward_near_keys range =
                gpu_backward_from(KEYS ? b->others.seen[n] : b->own.seen[own + r], first);
            const bool seen = key >= range.first && key < range.last;
            s[r] = gpu_backward_weight(
                gpu_reread(t.of.p), s[r], KEYS ? b->others.lse[n] : b->own.lse[own + r],
                KEYS ? b->others.delta[n] : b->own.delta[own + r], seen, &dp[r]);
            sees |= (uint32_t)seen << r;
        }
        gpu_write_numbers<shape::OWN>(weights, s);
        gpu_write_numbers<shape::OWN>(gradients, dp);
        t.b->sees[n][gpu_thread() / GPU_COLUMN_LANES] = (uint8_t)sees;
    }
}

/* Adds VALUES others from `first` of the tile on; FINITE: all are, else each to those that see it
 * or are seen. */
template <int DIM, bool FINITE>
GPU_FN void gpu_backward_add_some(const gpu_backward_generic_call &t, int first,
                                  gpu_backward_sums<DIM> &sums) {
    typedef gpu_backward_shape<DIM> shape;
    const float *weights = gpu_backward_of<DIM>(t.m.weights, first),
                *others = t.m.others + 4 * gpu_backward_lane();
#pragma unroll 2
    for (int n = 0; n < shape::VALUES; n++) {
        const uint32_t sees = FINITE ? 0 : t.b->sees[first + n][gpu_thread() / GPU_COLUMN_LANES];
        float w[shape::OWN];
        gpu_read_numbers<shape::OWN>(weights + n * shape::WEIGHTS, w);
#pragma unroll
        for (int j = 0; j < shape::COLUMNS; j++) {
            float x[4];
            gpu_read_numbers<4>(others + n * DIM + 4 * GPU_COLUMN_LANES * j, x);
#pragma unroll
            for (int r = 0; r < shape::OWN; r++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    if (FINITE || (sees >> r & 1))
                        sums.of[r][j][c] = fmaf(w[r], x[c], sums.of[r][j][c]);
        }
    }
}

/* Adds a tile's others by their weights. count: of additions. */
template <int DTYPE, int DIM, int KEYS>
GPU_FN void gpu_backward_add(const gpu_backward_generic_call &t, int which, int from, int to,
                             int32_t *count, gpu_backward_sums<DIM> &sums) {
    enum { VALUES = gpu_backward_shape<DIM>::VALUES };
    __syncthreads(); /* weights are there */
#pragma unroll 1
    for (int first = from / VALUES * VALUES; first < to; first += VALUES) {
        if (!gpu_backward_read<DTYPE, !KEYS, VALUES, DIM>(t, t.b->others.at[which] + first, which,
                                                          0, t.m.others, DIM))
            t.b->special = *count + 1;
        ++*count;
        __syncthreads();
        if (t.b->special != *count)
            gpu_backward_add_some<DIM, true>(t, first, sums);
        else
            gpu_backward_add_some<DIM, false>(t, first, sums);
        __syncthreads();
    }
}

/* Gradients that a block sums at a time: where registers do not hold two, keys are gone through for
 * dv, then for dk. */
template <int DIM, int KEYS> constexpr int gpu_backward_at_once = KEYS &&DIM <= 128 ? 2 : 1;

/* The tile from `first` of the others on. which: the gradient, or 0 for all. */
template <int DTYPE, int DIM, int KEYS>
GPU_FN void
gpu_backward_generic_tile(const gpu_backward_generic_call &t, int64_t first, int which,
                          int32_t *count,
                          gpu_backward_sums<DIM> (&sums)[gpu_backward_at_once<DIM, KEYS>]) {
    typedef gpu_backward_shape<DIM> shape;
    const int64_t before = t.b->begin - first, left = t.b->end - first;
    const int from = before > 0 ? (int)before : 0,
              to = left < GPU_ATTENTION_THREADS ? (int)left : (int)GPU_ATTENTION_THREADS;
    float x[shape::OWN][shape::OTHERS];
    gpu_backward_others<KEYS>(t, first);
#pragma unroll 1
    for (int product = 0; product < (which ? 1 : 2); product++)
        gpu_backward_products<DTYPE, DIM, KEYS>(t, product, x);
    if (!which)
        gpu_backward_keep<DIM>(t.m.others, false, x);
    gpu_backward_weigh<DIM, KEYS>(t, KEYS ? t.b->tile.first : first);
    gpu_backward_take<DIM>(t.m.others, x);
    if constexpr (gpu_backward_at_once<DIM, KEYS> == 2)
        gpu_backward_add<DTYPE, DIM, KEYS>(t, 1, from, to, count, sums[1]);
    if (!which)
        gpu_backward_keep<DIM>(t.m.weights, false, x);
    gpu_backward_add<DTYPE, DIM, KEYS>(t, which, from, to, count, sums[0]);
}

/* --- a block --- */

/* The block's own, and which of the others may count. */
template <int DIM, int KEYS> GPU_FN void gpu_backward_begin(const gpu_backward_generic_call &t) {
    enum { ROWS = gpu_backward_shape<DIM>::ROWS };
    gpu_backward_generic_block *b = t.b;
    const rope_attention_sequence *s = &b->tile.s;
    const int n = gpu_thread();
    if (n < ROWS)
        gpu_backward_put(KEYS
                             ? gpu_backward_key(t.of, s, b->head, b->tile.first + n)
                             : gpu_backward_row(t.of, s, b->head, b->tile.first + n, &b->tokens[n]),
                         &b->own, n);
    __syncthreads();
    if (n == 0) {
        b->begin = b->end = 0;
        b->special = 0;
        if constexpr (KEYS) {
            const int64_t group = gpu_attention_group(&gpu_reread(t.of.call)->forward);
            b->begin = group * gpu_first_query(gpu_reread(t.of.p), s, b->tile.first, false);
            b->end = group * gpu_first_query(gpu_reread(t.of.p), s, b->tile.first + ROWS, true);
        } else {
            for (int r = 0; r < ROWS; r++) {
                const rope_key_range seen = b->own.seen[r];
                if (seen.begin >= seen.end)
                    continue;
                b->begin = b->end == 0 || seen.begin < b->begin ? seen.begin : b->begin;
                b->end = seen.end > b->end ? seen.end : b->end;
            }
        }
    }
    __syncthreads();
}

/* Sums of the block's own, by factor and rounded, where they wait to be written. */
template <int DTYPE, int DIM>
GPU_FN void gpu_backward_stage(const gpu_backward_sums<DIM> &sums, float factor, int dim,
                               float *x) {
    typedef gpu_backward_shape<DIM> shape;
#pragma unroll
    for (int r = 0; r < shape::OWN; r++)
#pragma unroll
        for (int j = 0; j < shape::COLUMNS; j++)
#pragma unroll
            for (int c = 0; c < 4; c += 2) { /* a zero has no sign */
                const float2 two = gpu_round<DTYPE>(fmaf(sums.of[r][j][c], factor, 0.0f),
                                                    fmaf(sums.of[r][j][c + 1], factor, 0.0f));
                const int column = 4 * (GPU_COLUMN_LANES * j + gpu_backward_lane()) + c;
                float *to = x + (gpu_backward_first_own<DIM>() + r) * dim + column;
                if (column < dim)
                    to[0] = two.x;
                if (column + 1 < dim)
                    to[1] = two.y;
            }
}

/* Writes gradient `which`, whose numbers wait. */
template <int DTYPE, int DIM, int KEYS>
GPU_FN void gpu_backward_end(const gpu_backward_generic_call &t, int which, int dim) {
    enum { ROWS = gpu_backward_shape<DIM>::ROWS };
    gpu_backward_generic_block *b = t.b;
    const int n = gpu_thread();
    if (n < ROWS) {
        int64_t to[2] = {0, 0};
        if (KEYS)
            gpu_backward_key_end(t.of, &b->tile.s, b->head, b->tile.first + n, &b->tokens[n], to);
        else
            to[0] =
                gpu_backward_row_end(t.of, &b->tile.s, b->head, b->tile.first + n, &b->tokens[n]);
        b->to[0][n] = to[0];
        b->to[1][n] = to[1];
    }
    __syncthreads();
    gpu_backward_write<DTYPE, KEYS>(t.of, &b->tile, which, b->tokens, b->to[which], t.fits, ROWS,
                                    dim, dim, t.m.own);
}

/* All that concerns the block's own. */
template <int DTYPE, int DIM, int KEYS>
GPU_FN void gpu_backward_block_own(const gpu_backward_generic_call &t) {
    enum { AT_ONCE = gpu_backward_at_once<DIM, KEYS> };
    gpu_backward_begin<DIM, KEYS>(t);
    int32_t count = 0;
#pragma unroll 1
    for (int which = KEYS + 1 - AT_ONCE; which >= 0; which--) {
        gpu_backward_sums<DIM> sums[AT_ONCE] = {};
#pragma unroll 1
        for (int64_t first = t.b->begin / GPU_ATTENTION_THREADS * GPU_ATTENTION_THREADS;
             first < t.b->end; first += GPU_ATTENTION_THREADS)
            gpu_backward_generic_tile<DTYPE, DIM, KEYS>(t, first, which, &count, sums);
#pragma unroll 1
        for (int gradient = which + AT_ONCE - 1; gradient >= which; gradient--) {
            const rope_attention_problem *p = gpu_reread(t.of.p);
            const int dim = gradient ? p->v_head_dim : p->head_dim;
            if (AT_ONCE == 2 && gradient)
                gpu_backward_stage<DTYPE, DIM>(sums[AT_ONCE - 1], 1, dim, t.m.own);
            else
                gpu_backward_stage<DTYPE, DIM>(sums[0], gradient ? 1 : p->scale, dim, t.m.own);
            gpu_backward_end<DTYPE, DIM, KEYS>(t, gradient, dim);
        }
    }
}

template <int DTYPE, int DIM, int KEYS>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, GPU_BACKWARD_BLOCKS(DIM))
    gpu_backward_generic(GPU_PARAMETER rope_attention_problem problem,
                         GPU_PARAMETER rope_attention_backward_call given, const int32_t *failed,
                         float *delta, GPU_PARAMETER rope_call tokens, int32_t fits) {
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_backward_call &c =
        *gpu_parameter<rope_attention_backward_call, rope_attention_problem>(given);
    const rope_call &keys =
        *gpu_parameter<rope_call, rope_attention_problem, rope_attention_backward_call,
                       const int32_t *, float *>(tokens);
    typedef gpu_backward_shape<DIM> shape;
    extern __shared__ uint4 memory[];
    __shared__ gpu_backward_generic_block b;
    float *room = (float *)memory;
    enum {
        OWN = GPU_BACKWARD_HEAD * shape::ROWS,
        OTHERS = GPU_BACKWARD_HEAD * GPU_ATTENTION_THREADS
    };
    static_assert(shape::VALUES * DIM <= OTHERS, "what is added at a time lies where others do");
    const gpu_backward_generic_call t = {
        {gpu_reread(&p), gpu_reread(&c), gpu_reread(&keys), failed, delta},
        &b,
        {room, room + OWN, room + OWN + OTHERS},
        fits};
    gpu_wait_for_last();
    gpu_let_next_start();
    const int64_t each = KEYS ? 1 : gpu_attention_group(&c.forward);
    for (int64_t n = blockIdx.x;
         gpu_attention_find<KEYS>(&p, &c.forward, failed, n, each, shape::ROWS, &b.tile);
         n = b.next) {
        if (threadIdx.x == 0)
            b.next = n + gridDim.x;
        __syncthreads();
        if (!b.tile.valid || b.tile.first >= (KEYS ? b.tile.s.k_count : b.tile.s.q_count * each))
            continue;
        for (int64_t head = blockIdx.y; head < c.forward.k.heads; head = b.head + gridDim.y) {
            __syncthreads();
            if (threadIdx.x == 0)
                b.head = head;
            __syncthreads();
            gpu_backward_block_own<DTYPE, DIM, KEYS>(t);
        }
    }
}

#endif
