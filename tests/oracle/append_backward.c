#include "tests/oracle/append_backward.h"

#include "tests/oracle/format.h"

#include <math.h>
#include <stdlib.h>

static const double U = 0x1p-24, TINY = 0x1p-149, SLACK = 1.01;

static int depth(int64_t n) {
    int levels = 0;
    while ((INT64_C(1) << levels) < n)
        levels++;
    return levels;
}

/* Numbers of a norm and the errors e_ of the library's. */
typedef struct numbers {
    double mean, e_mean, r, e_r; /* e_r: relative */
    double shift, e_shift, slope, e_slope;
    int layer, twice;
    double unit, tiny; /* of dtype */
} numbers;

static double error_of_d(const numbers *k, double d) {
    return k->layer ? k->e_mean + U * fabs(d) : 0;
}

static double error_of_h(const numbers *k, int weighs, double h) {
    return (weighs ? U * fabs(h) + TINY : 0) + (k->twice ? k->unit * fabs(h) + k->tiny : 0);
}

static void find_root(numbers *k, const rope_norm *norm, int64_t n, const double *x) {
    double magnitudes = 0, squares = 0, error = 0;
    for (int64_t i = 0; i < n && k->layer; i++) {
        k->mean += x[i] / (double)n;
        magnitudes += fabs(x[i]);
    }
    k->e_mean = (depth(n) + 1) * U * magnitudes / (double)n + TINY;
    for (int64_t i = 0; i < n; i++) {
        const double d = x[i] - k->mean, e = error_of_d(k, d);
        squares += d * d;
        error += 2 * fabs(d) * e + e * e + TINY;
    }
    error += (depth(n) + 1) * U * (squares + error);
    const double eps = (double)(float)norm->eps, all = squares + (double)n * eps;
    k->r = 1 / sqrt(all / (double)n);
    k->e_r = error < all / 8 ? 0.6 * error / all + 4 * U : INFINITY;
}

static void find_sums(numbers *k, int weighs, int64_t n, const double *x, const double *h) {
    double sum = 0, products = 0, e_sum = 0, e_products = 0, m_sum = 0, m_products = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = x[i] - k->mean, e_d = error_of_d(k, d), e_h = error_of_h(k, weighs, h[i]);
        sum += h[i];
        e_sum += e_h;
        m_sum += fabs(h[i]) + e_h;
        products += h[i] * d;
        e_products += e_h * (fabs(d) + e_d) + fabs(h[i]) * e_d + TINY;
        m_products += (fabs(h[i]) + e_h) * (fabs(d) + e_d);
    }
    const double count = (double)n, root = k->r * (1 + k->e_r);
    if (k->layer) {
        k->shift = sum / count;
        k->e_shift = (e_sum + (depth(n) + 1) * U * m_sum) / count + TINY;
    }
    k->slope = products / count * k->r;
    k->e_slope = (e_products + (depth(n) + 2) * U * m_products) / count * root +
                 fabs(k->slope) * (k->e_r + 2 * U) + TINY;
}

static void find_element(const numbers *k, int weighs, double x, double h, double g,
                         oracle_slope *dx, oracle_slope *term) {
    const double d = x - k->mean, y = d * k->r, root = k->r * (1 + k->e_r),
                 e_y = error_of_d(k, d) * root + fabs(y) * (k->e_r + U) + TINY,
                 slope = fabs(k->slope) + k->e_slope, t = h - k->shift - y * k->slope,
                 size = fabs(h) + fabs(k->shift) + fabs(y * k->slope),
                 e_t = error_of_h(k, weighs, h) + k->e_shift + e_y * slope + fabs(y) * k->e_slope +
                       2 * U * size + TINY;
    dx->value = t * k->r;
    dx->bound = (e_t * root + fabs(dx->value) * (k->e_r + U)) * SLACK + TINY;
    term->value = g * y;
    term->bound =
        fabs(g) * (e_y + (k->twice ? k->unit * (fabs(y) + e_y) + k->tiny : 0)) * SLACK + TINY;
}

void oracle_norm_backward(int32_t dtype, const rope_norm *norm, int64_t n, const double *x,
                          const double *g, const double *w, oracle_slope *dx, oracle_slope *terms) {
    const oracle_format *format = oracle_format_of(dtype);
    const int weighs = norm->weight != 0;
    numbers k = {.layer = norm->type == ROPE_NORM_LAYER,
                 .twice = weighs && norm->rounding == ROPE_NORM_ROUND_TWICE,
                 .unit = format->unit,
                 .tiny = format->tiny};
    double *h = calloc((size_t)n + 1, sizeof *h);
    for (int64_t i = 0; i < n; i++)
        h[i] = weighs ? g[i] * w[i] : g[i];
    find_root(&k, norm, n, x);
    find_sums(&k, weighs, n, x, h);
    for (int64_t i = 0; i < n; i++)
        find_element(&k, weighs, x[i], h[i], g[i], &dx[i], &terms[i]);
    free(h);
}

double oracle_slope_bound(int32_t dtype, const oracle_slope *slope) {
    const oracle_format *format = oracle_format_of(dtype);
    return slope->bound + format->unit * (fabs(slope->value) + slope->bound) + format->tiny;
}

double oracle_weight_bound(double bounds, double magnitudes, int64_t chains, int64_t blocks) {
    const double roundings = 8 + (double)(chains - 1) + depth(blocks);
    return bounds + roundings * U * (magnitudes + bounds) * SLACK + TINY;
}
