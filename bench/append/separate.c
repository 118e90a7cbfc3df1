#include "bench/append/separate.h"

#include "bench/output/message.h"
#include "bench/workload/target.h"
#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- a step a call, by the kernels that plans choose, whichever runs the whole --- */

static const char *const step_names[] = {"norm", "rotation", "store"};

static bool takes_step(const append_state *s, int tensor, int step) {
    const options *o = s->o;
    const rope_append_part *part = append_part_of(&s->desc, tensor);
    const bool normal = part->norm.type != 0;
    const bool rotates = tensor != APPEND_V && s->desc.rotation != ROPE_ROTATION_OFF;
    const bool stores = append_is_cached(o, tensor) || part->factor != 0 || part->scale ||
                        append_store_dtype(o, tensor) != o->desc.dtype;
    return append_heads(o, tensor) > 0 &&
           (step == STEP_NORM       ? normal
            : step == STEP_ROTATION ? rotates
                                    : stores || !(normal || rotates));
}

static rope_append_desc step_desc(const append_state *s, int step) {
    rope_append_desc d = ROPE_APPEND_DESC_INIT;
    const rope_norm none = {0};
    if (step == STEP_NORM) {
        d.q.norm = s->desc.q.norm;
        d.k.norm = s->desc.k.norm;
        d.v.norm = s->desc.v.norm;
        d.v_head_dim = s->desc.v_head_dim;
    } else {
        d = s->desc;
        d.q.norm = d.k.norm = d.v.norm = none;
        d.k_source = 0;
    }
    d.rope = target_without_rotation(&s->desc.rope);
    d.rope.kernel = NULL;
    d.rotation = ROPE_ROTATION_OFF;
    return d;
}

/* Keys of the cache have their attention factor and the order of pairs already, and XPos takes a
 * difference. */
static rope_desc rotation_desc(const append_state *s) {
    rope_desc d = s->desc.rope;
    d.kernel = NULL;
    if (append_moves(s->o)) {
        d.xpos_center = 0;
        if (d.pairing_out)
            d.pairing_in = d.pairing_out;
        if (d.angle_mode != ROPE_ANGLE_TABLE) {
            d.attention_factor = 1;
            d.mscale = d.mscale_all_dim = d.short_mscale = d.long_mscale = 0;
        }
    }
    return d;
}

/* Tensors go from where their step before left them to where the one behind finds them. */
static rope_append_args step_on(const workload *w, int step, int64_t set) {
    const append_state *s = w->append;
    char *between = s->scratch;
    rope_append_args whole = ((const rope_append_args *)w->calls[0].sets)[set], a = whole;
    for (int t = 0; t < APPEND_TENSORS; t++) {
        const rope_tensor *given = append_tensor_of(&whole, t);
        bool first = !append_moves(s->o), last = true;
        for (int other = 0; other < STEPS; other++) {
            first = first && !(other < step && takes_step(s, t, other));
            last = last && !(other > step && takes_step(s, t, other));
        }
        *append_tensor_of(&a, t) = (rope_tensor){0};
        if (takes_step(s, t, step))
            append_set_tensor(s->o, &a, t, first ? given->in : between + s->between[t].start,
                              last ? given->out : between + s->between[t].start);
    }
    if (step == STEP_ROTATION)
        return a;
    a.rope.position_offset = 0;
    a.rope.position_ids = a.rope.sequence_offsets = a.rope.sequence_lengths = NULL;
    memset(a.rope.position_stride, 0, sizeof a.rope.position_stride);
    a.rope.cos = a.rope.sin = NULL;
    a.rope.table_rows = 0;
    if (step == STEP_STORE) {
        a.q_weight = a.k_weight = a.v_weight = (rope_norm_weight){0};
        if (a.rope.q.heads == 0)
            a.q_scale = (rope_scale){0};
        return a;
    }
    a.q_scale = (rope_scale){0};
    a.k_cache = a.v_cache = (rope_cache){0};
    a.slots = a.block_table = a.cache_starts = NULL;
    a.pages = a.table_pages = 0;
    return a;
}

bool append_add_step(workload *w, int step) {
    const append_state *s = w->append;
    workload_call *c = &w->calls[w->call_count];
    const rope_append_desc desc = step_desc(s, step);
    const rope_desc rotation = rotation_desc(s);
    const bool rotates = step == STEP_ROTATION;
    if (!takes_step(s, 0, step) && !takes_step(s, 1, step) && !takes_step(s, 2, step))
        return true;
    c->name = step_names[step];
    c->size = rotates ? sizeof(rope_args) : sizeof(rope_append_args);
    c->sets = staging_host(&w->memory, "calls", w->set_count, c->size);
    if (!c->sets || !succeeded(rotates ? rope_plan_create(&rotation, &c->plan)
                                       : rope_append_plan_create(&desc, &c->plan),
                               c->name))
        return false;
    w->call_count++;
    for (int64_t i = 0; i < w->set_count; i++) {
        const rope_append_args a = step_on(w, step, i);
        if (rotates)
            ((rope_args *)c->sets)[i] = a.rope;
        else
            ((rope_append_args *)c->sets)[i] = a;
    }
    return true;
}

/* --- keys of the cache as a tensor --- */

/* By the formats' definitions: OCP 8-bit floating point 1.0, and AMD's e4m3fnuz. */
double append_decode(int32_t dtype, const char *at, int64_t i) {
    const uint8_t byte = ((const uint8_t *)at)[i];
    const int mantissa = dtype == ROPE_F8E5M2 ? 2 : 3;
    const int bias = dtype == ROPE_F8E5M2 ? 15 : dtype == ROPE_F8E4M3 ? 7 : 8;
    if (dtype < ROPE_F8E4M3)
        return oracle_load(dtype, at, i);
    if (dtype == ROPE_I8)
        return (int8_t)byte;
    const int exponent = (byte & 0x7f) >> mantissa, fraction = byte & ((1 << mantissa) - 1);
    const double size = exponent ? ldexp((1 << mantissa) + fraction, exponent - bias - mantissa)
                                 : ldexp(fraction, 1 - bias - mantissa);
    return byte & 0x80 ? -size : size;
}

/* The element of a place, times its scale, in dtype. */
static double key_at(const append_state *s, const rope_cache *c, int64_t slot, int64_t head,
                     int64_t dim) {
    const options *o = s->o;
    const int64_t heads = append_heads(o, APPEND_K), all = append_head_dim(o, APPEND_K);
    const int64_t size = s->desc.page_size, page = slot / size;
    const int32_t scale = s->desc.k.scale;
    const int64_t x = s->desc.k_dim_block ? s->desc.k_dim_block : all;
    const bool strided = o->page_layout == PAGES_HND;
    const int64_t at = strided ? page * c->stride[0] + slot % size * c->stride[1] +
                                     head * c->stride[2] + dim / x * c->stride[3] + dim % x
                               : (slot * heads + head) * all + dim;
    const float *scales = (const float *)(const void *)(s->image + s->scale[APPEND_K].start);
    const float value =
        (float)append_decode(s->cache[APPEND_K].dtype, s->image + s->cache[APPEND_K].start, at);
    return scale == 0                   ? value
           : scale == ROPE_SCALE_TENSOR ? value * scales[0]
           : scale == ROPE_SCALE_HEAD   ? value * scales[head]
                                        : value * scales[slot * heads + head];
}

/* What the image caches becomes the tensor that the steps rotate and store. */
static bool load_keys(const workload *w) {
    const append_state *s = w->append;
    const options *o = s->o;
    const int64_t heads = append_heads(o, APPEND_K), dims = append_head_dim(o, APPEND_K);
    const rope_append_args *a = w->calls[0].sets;
    int64_t stride[4];
    char *keys = malloc(s->between_bytes + 1);
    workload_strides(o, heads, dims, stride);
    for (int64_t i = 0; keys && i < o->batch * o->tokens; i++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t d = 0; d < dims; d++)
                oracle_store(o->desc.dtype, keys + s->between[APPEND_K].start,
                             i / o->tokens * stride[0] + i % o->tokens * stride[1] + h * stride[2] +
                                 d * stride[3],
                             key_at(s, &a->k_cache, s->places[i], h, d));
    bool loaded =
        keys &&
        succeeded(rope_device_copy_in(w->device, s->scratch, keys, s->between_bytes), "copy in");
    free(keys);
    return loaded;
}

bool append_run_steps(const workload *w) {
    bool done = !append_moves(w->append->o) || load_keys(w);
    for (int32_t i = 1; done && i < w->call_count; i++)
        done = workload_run(w, i);
    return done;
}
