/* The kernel without vector instructions: the bits that every other kernel must reproduce. */
#include "backends/cpu/rope/f64.h"

typedef struct row {
    rope_coefficients pair[CPU_PART_PAIRS];
    rope_pair window[CPU_PART_PAIRS];
} row;

static void fill(const rope_problem *p, const rope_call *call, const rope_token *token, int tensor,
                 cpu_pairs pairs, void *to) {
    for (int i = 0; i < pairs.count; i++)
        ((row *)to)->pair[i] = rope_coefficients_of(p, call, token, pairs.first + i, tensor);
}

/* The window is read first: where the pairing changes a pair is not written where it was read. */
CPU_INLINE void rotate_dtype(int dtype, int model, const rope_problem *p, cpu_pairs pairs, row *r,
                             const cpu_head *head) {
    for (int i = 0; i < pairs.count; i++) {
        const int64_t first = rope_first_of(p->pairing_in, pairs.first + i),
                      second = rope_second_of(p->pairing_in, pairs.first + i, p->pairs);
        r->window[i].x1 = cpu_load(dtype, head->in, first * head->in_stride);
        r->window[i].x2 = cpu_load(dtype, head->in, second * head->in_stride);
    }
    for (int i = 0; i < pairs.count; i++) {
        const int64_t first = rope_first_of(p->pairing_out, pairs.first + i),
                      second = rope_second_of(p->pairing_out, pairs.first + i, p->pairs);
        const rope_pair x = r->window[i], y = model ? rope_rotate_model(dtype, x, r->pair[i])
                                                    : rope_rotate(x, r->pair[i]);
        cpu_store(dtype, head->out, first * head->out_stride, y.x1);
        cpu_store(dtype, head->out, second * head->out_stride, y.x2);
    }
}

static void rotate_window(const rope_problem *p, cpu_pairs pairs, void *r, const cpu_head *window) {
    const int model = p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE;
    if (p->dtype == ROPE_F32)
        rotate_dtype(ROPE_F32, model, p, pairs, r, window);
    else if (p->dtype == ROPE_BF16)
        rotate_dtype(ROPE_BF16, model, p, pairs, r, window);
    else
        rotate_dtype(ROPE_F16, model, p, pairs, r, window);
}

static void rotate(const rope_problem *p, const rope_call *call, const cpu_slice *slice) {
    static const cpu_pairwise kernel = {fill, rotate_window};
    row r;
    cpu_rotate_pairwise(&kernel, &r, p, call, slice);
}

/* The same with a row that is given, for operations that rotate. */
static void rotate_head(const cpu_heads *h, const cpu_head *window, const cpu_cos_sin_row *from) {
    const int size = cpu_dtype_size(h->problem->dtype),
              count = h->part ? h->part : h->problem->pairs,
              last = cpu_moves_last(h->problem, window->in, window->out);
    const cpu_head head = {window->in - h->before, window->out - h->before, 1, 1};
    const int64_t before = h->before / size, end = before + 2 * (int64_t)h->problem->pairs;
    rope_problem p = *h->problem;
    row r;
    p.pairing_out = last ? p.pairing_in : p.pairing_out;
    cpu_copy_elements(size, &head, 0, before);
    cpu_copy_elements(size, &head, end, end + h->after / size);
    for (int first = 0; first < count; first += CPU_PART_PAIRS) {
        const cpu_pairs pairs = cpu_part_of(count, first);
        for (int i = 0; i < pairs.count; i++)
            r.pair[i] = (rope_coefficients){from->c1[first + i], from->s1[first + i],
                                            from->c2[first + i], from->s2[first + i]};
        rotate_window(&p, pairs, &r, window);
    }
    if (last)
        cpu_move_window(h->problem, size, window);
}

static void rotate_heads(const cpu_heads *heads, int tensors, const cpu_cos_sin_row *rows,
                         int tokens) {
    for (int n = 0; n < tensors; n++)
        for (int t = 0; t < tokens; t++)
            for (int64_t k = 0; k < heads[n].count; k++) {
                const cpu_heads *h = &heads[n];
                const cpu_head window = {h->in + t * h->in_step + k * h->in_stride,
                                         h->out + t * h->out_step + k * h->out_stride, 1, 1};
                rotate_head(h, &window, &rows[t]);
            }
}

static void put(const cpu_cos_sin_row *to, int i, rope_coefficients m) {
    to->c1[i] = m.c1;
    to->s1[i] = m.s1;
    to->c2[i] = m.c2;
    to->s2[i] = m.s2;
}

static void compute_rows(const rope_problem *p, const rope_token *tokens, int count, int tensor,
                         cpu_pairs pairs, const cpu_cos_sin_row *rows) {
    for (int t = 0; t < count; t++)
        for (int n = 0; n < pairs.count; n++) {
            const int i = pairs.first + n, axis = p->axes > 1 ? p->pair_axis[i] : 0;
            put(&rows[t], n, rope_computed(p, tokens[t].set, i, tokens[t].at[axis], tensor));
        }
}

static void read_row(const rope_problem *p, const rope_call *call, const rope_token *token,
                     cpu_pairs pairs, const cpu_cos_sin_row *to) {
    for (int i = 0; i < pairs.count; i++)
        put(to, i, rope_coefficients_of(p, call, token, pairs.first + i, 0));
}

static const cpu_rope_rows rows = {1, compute_rows, read_row, NULL};
static const cpu_rope_instances instances = {.general = rotate_heads};

const cpu_kernel cpu_kernel_scalar = {.needs = CPU_ISA_SCALAR,
                                      .slice = rotate,
                                      .slice_f64 = cpu_rotate_f64,
                                      .rows = &rows,
                                      .instances = {&instances, &instances, &instances}};
