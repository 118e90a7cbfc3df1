/*
 * The oracle: what a rotation is in exact arithmetic (MPFR, 256 bits), and how far the numerical
 * contract lets a result be from it. It shares no code with the library and reads only rope.h; what
 * it is given must be valid, and every pointer of a rope_args is host memory.
 *
 *     oracle *o = oracle_create(&desc);
 *     oracle_apply(o, &args, 0, value, bound);
 *     for each element: oracle_accepts(desc.dtype, got, value[i], bound[i])
 *
 * An oracle keeps the angles of the last token, so one thread at a time uses it.
 */
#ifndef ROPEKIT_ORACLE_H
#define ROPEKIT_ORACLE_H

#include <ropekit/rope.h>

typedef struct oracle oracle;

/* Copies a descriptor that rope_plan_create accepts, and what it points to. NULL: no memory. */
oracle *oracle_create(const rope_desc *desc);
void oracle_destroy(oracle *o);

/* Lists of frequencies: 0 for tables, 2 for longrope per sequence, else 1. */
int32_t oracle_sets(const oracle *o);
/* Radians a position of a pair, by the rule in 256 bits, rounded to nearest. */
double oracle_frequency(const oracle *o, int32_t set, int32_t pair);
double oracle_attention_factor(const oracle *o, int32_t set);
/* cos and sin that the angle mode promises at a position, before attention factor and direction,
 * rounded to nearest. */
void oracle_cos_sin(oracle *o, int32_t set, int64_t position, int32_t pair, double *cosine,
                    double *sine);
/* cos and sin of position * omega, rounded to nearest. */
void oracle_angle_cos_sin(int64_t position, double omega, double *cosine, double *sine);

/* What becomes of a token. */
enum { ORACLE_ROTATES = 0, ORACLE_PASSES = 1, ORACLE_FAILS = 2 };
typedef struct oracle_token {
    int32_t status;
    int32_t set;               /* list of frequencies */
    int64_t at[ROPE_MAX_AXES]; /* position, or row of the table, on each axis */
} oracle_token;
oracle_token oracle_locate(const oracle *o, const rope_args *args, int64_t batch, int64_t token);

/*
 * The heads * head_dim values that a token of q (tensor 0) or k (tensor 1) gets, and how far each
 * may be off. A bound of 0 is an element that is copied, one of infinity allows anything; a value
 * of NaN with any other bound stands for "NaN or infinite".
 */
void oracle_rotate(oracle *o, const rope_args *args, int32_t tensor, int64_t batch, int64_t token,
                   double *value, double *bound);
/* The same for batch * tokens * heads * head_dim values, in that order. */
void oracle_apply(oracle *o, const rope_args *args, int32_t tensor, double *value, double *bound);
/* Whether a result keeps the contract; beyond the largest number of dtype that is an infinity. */
int oracle_accepts(int32_t dtype, double got, double value, double bound);

/* What a number may be. */
enum {
    ORACLE_WITHIN = 0,     /* low..high */
    ORACLE_NAN = 1,        /* a NaN */
    ORACLE_NOT_FINITE = 2, /* a NaN or an infinity */
    ORACLE_ANY = 3
};
typedef struct oracle_range {
    int32_t kind;
    double low, high;
} oracle_range;

/* Takes the heads of a token of q or k, numbers of dtype, to what their rotation may be, rounded to
 * dtype; the token must not fail. */
void oracle_rotate_ranges(oracle *o, const rope_args *args, int32_t tensor, int64_t batch,
                          int64_t token, int64_t heads, oracle_range *x);
int oracle_in_range(double got, const oracle_range *range);

/* Element `index` of an array of floating numbers or of ROPE_I8. */
double oracle_load(int32_t dtype, const void *array, int64_t index);
int oracle_is_nan(int32_t dtype, const void *array, int64_t index);
/* Stores x rounded to nearest even; x must be a float for the 16-bit types to match fp32 chains. */
void oracle_store(int32_t dtype, void *array, int64_t index, double x);
/* x rounded to nearest even to a number of dtype; one of 8 bits saturates, and of ROPE_I8 a NaN is
 * 0. */
double oracle_round(int32_t dtype, double x);
/* Element strides over [batch, token, head, dim] that a tensor of a call stands for. */
void oracle_strides(const rope_desc *desc, const rope_args *args, int32_t tensor, int64_t in[4],
                    int64_t out[4]);
/* Bytes of an element of any of ROPE_F32..ROPE_I8. */
int64_t oracle_dtype_size(int32_t dtype);

#endif
