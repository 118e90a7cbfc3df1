#define _GNU_SOURCE
#include "python/csrc/config_text.h"

#include <errno.h>
#include <locale.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Type of a field; the last four are lists or text. */
typedef enum field_kind {
    KIND_INT32,
    KIND_INT64,
    KIND_REAL,
    KIND_SECTIONS,
    KIND_REALS,
    KIND_AXES,
    KIND_NAME
} field_kind;

typedef struct field {
    const char *name;
    size_t offset; /* in config_text */
    field_kind kind;
    const char *values; /* names of an enumeration, from 1 on, or NULL */
    int has_zero;       /* where 0 is a value; elsewhere it stands for none in a rope_desc */
} field;

#define NAMED(name, member, kind, values, zero)                                                    \
    { name, offsetof(config_text, member), kind, values, zero }
#define ENUM(member, values) NAMED(#member, desc.member, KIND_INT32, values, 0)
#define FIELD(member, kind) NAMED(#member, desc.member, kind, NULL, 0)
#define ZERO(member, kind) NAMED(#member, desc.member, kind, NULL, 1)
#define NORM(prefix, member)                                                                       \
    NAMED(prefix "type", member.type, KIND_INT32, "rms layer", 0),                                 \
        NAMED(prefix "scope", member.scope, KIND_INT32, "head token", 0),                          \
        NAMED(prefix "offset", member.offset, KIND_INT32, NULL, 1),                                \
        NAMED(prefix "dim", member.dim, KIND_INT32, NULL, 0),                                      \
        NAMED(prefix "weight", member.weight, KIND_INT32, "weight one_plus_weight", 0),            \
        NAMED(prefix "rounding", member.rounding, KIND_INT32, "once twice", 0),                    \
        NAMED(prefix "eps", member.eps, KIND_REAL, NULL, 1)
#define PART(prefix, member)                                                                       \
    NORM(prefix "norm_", member.norm), NAMED(prefix "factor", member.factor, KIND_REAL, NULL, 0)

static const field fields[] = {
    NAMED("layout", layout, KIND_INT32, "bshd bhsd sbhd thd", 0),
    NAMED("role", role, KIND_INT32, "q k", 0),
    FIELD(head_dim, KIND_INT32),
    FIELD(rotary_dim, KIND_INT32),
    ZERO(rotary_offset, KIND_INT32),
    FIELD(k_head_dim, KIND_INT32),
    ZERO(k_rotary_offset, KIND_INT32),
    ENUM(pairing_in, "half_split interleaved"),
    ENUM(pairing_out, "half_split interleaved"),
    ENUM(direction, "forward transpose inverse"),
    ENUM(angle_mode, "exact f32 table"),
    ENUM(arithmetic, "fp32 model_dtype"),
    ENUM(rope_type, "default linear dynamic yarn longrope llama3 proportional inv_freq"),
    FIELD(rope_theta, KIND_REAL),
    FIELD(factor, KIND_REAL),
    FIELD(low_freq_factor, KIND_REAL),
    FIELD(high_freq_factor, KIND_REAL),
    FIELD(beta_fast, KIND_REAL),
    FIELD(beta_slow, KIND_REAL),
    FIELD(mscale, KIND_REAL),
    FIELD(mscale_all_dim, KIND_REAL),
    FIELD(attention_factor, KIND_REAL),
    FIELD(alpha, KIND_REAL),
    FIELD(partial_rotary_factor, KIND_REAL),
    FIELD(short_mscale, KIND_REAL),
    FIELD(long_mscale, KIND_REAL),
    FIELD(xpos_scale_base, KIND_REAL),
    ZERO(xpos_center, KIND_INT64),
    FIELD(original_max_position_embeddings, KIND_INT64),
    FIELD(max_position_embeddings, KIND_INT64),
    ZERO(sequence_length, KIND_INT64),
    FIELD(short_factor, KIND_REALS),
    FIELD(long_factor, KIND_REALS),
    FIELD(inv_freq, KIND_REALS),
    ENUM(truncate, "on off"),
    ENUM(longrope_select, "per_sequence static short long"),
    FIELD(axes, KIND_INT32),
    ENUM(axis_layout, "chunked interleaved alternating custom"),
    ENUM(axis_frequency, "shared restart"),
    FIELD(sections, KIND_SECTIONS),
    FIELD(pair_axis, KIND_AXES),
    ENUM(shard, "none contiguous zigzag"),
    ZERO(shard_rank, KIND_INT32),
    FIELD(shard_size, KIND_INT32),
    ENUM(table_width, "half full"),
    ENUM(out_of_range, "error identity clamp"),
    ENUM(launch, "serial programmatic"),
    FIELD(kernel, KIND_NAME),
    NORM("norm_", norm),
    PART("q_", append.q),
    PART("k_", append.k),
    PART("v_", append.v),
    NAMED("rotation", append.rotation, KIND_INT32, "on off", 0),
    NAMED("ring", append.ring, KIND_INT64, NULL, 0),
    NAMED("rotate", attention.rotation, KIND_INT32, "qk q none", 0),
    NAMED("mask", attention.mask, KIND_INT32, "causal full", 0),
    NAMED("window", attention.window, KIND_INT64, NULL, 0),
    NAMED("window_right", window_right, KIND_INT64, NULL, 1),
    NAMED("chunk", attention.chunk, KIND_INT64, NULL, 0),
    NAMED("scale", attention.scale, KIND_REAL, NULL, 0),
    NAMED("softcap", attention.soft_cap, KIND_REAL, NULL, 0),
    NAMED("nondeterministic", attention.nondeterministic, KIND_INT32, NULL, 0),
    NAMED("dtype", append.rope.dtype, KIND_INT32, "float32 float16 bfloat16", 0),
};

enum { FIELD_COUNT = sizeof fields / sizeof fields[0] };

static _Thread_local char message[512];

/* Has this thread read and write numbers with a point. Returns its own locale, to be given back. */
static locale_t use_point(void) {
    locale_t c = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
    return c ? uselocale(c) : c;
}

static void give_back(locale_t own) {
    if (own)
        freelocale(uselocale(own));
}

/* Length of the word that text begins with. */
static size_t word(const char *text) {
    return strcspn(text, " ");
}

static const field *find(const char *name, size_t length) {
    for (int i = 0; i < FIELD_COUNT; i++)
        if (strlen(fields[i].name) == length && memcmp(fields[i].name, name, length) == 0)
            return &fields[i];
    return NULL;
}

/* Index, from 1, of a name among names divided by spaces; 0 where it is none of them. */
static int32_t index_of(const char *names, const char *name) {
    for (int32_t index = 1; *names; index++, names += word(names), names += *names == ' ')
        if (word(names) == strlen(name) && memcmp(names, name, word(names)) == 0)
            return index;
    return 0;
}

static int read_int(const char *text, int64_t most, int64_t *value) {
    char *end;
    errno = 0;
    long long read = strtoll(text, &end, 10);
    *value = read;
    return end != text && *end == '\0' && errno == 0 && read <= most && read >= -most - 1;
}

static int read_real(const char *text, double *value) {
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0';
}

/* Reads the entries of a list, at most as many as it has commas and one. Returns how many, or -1.
 */
static int32_t read_list(char *text, double *values) {
    int32_t count = 0;
    for (char *next; text; text = next) {
        next = strchr(text, ',');
        if (next)
            *next++ = '\0';
        if (!read_real(text, &values[count++]))
            return -1;
    }
    return count;
}

static int are_whole(const double *values, int32_t count, double most) {
    for (int32_t i = 0; i < count; i++)
        if (!(values[i] >= 0 && values[i] <= most && values[i] == (double)(int32_t)values[i]))
            return 0;
    return 1;
}

static int store_sections(rope_desc *desc, const double *values, int32_t count) {
    if (count > ROPE_MAX_AXES || !are_whole(values, count, INT32_MAX))
        return 0;
    for (int32_t i = 0; i < count; i++)
        desc->sections[i] = (int32_t)values[i];
    return 1;
}

/* The axes of the pairs, in the room of the numbers they were read from. */
static int store_axes(config_text *config, double *values, int32_t count) {
    uint8_t *axes = (uint8_t *)values;
    if (!are_whole(values, count, ROPE_MAX_AXES - 1))
        return 0;
    for (int32_t i = 0; i < count; i++)
        axes[i] = (uint8_t)values[i];
    config->desc.pair_axis = axes;
    config->axis_count = count;
    return 1;
}

/* One count stands for every list of factors. */
static int store_reals(rope_desc *desc, const double **member, const double *values,
                       int32_t count) {
    *member = values;
    int agrees = desc->factor_count == 0 || desc->factor_count == count;
    desc->factor_count = count;
    return agrees;
}

/* Stores a value and moves *lists past what a list took. */
static int store(const field *f, config_text *config, char *value, double **lists) {
    void *member = (char *)config + f->offset;
    if (f->kind == KIND_REAL)
        return read_real(value, member) && (f->has_zero || *(double *)member != 0);
    if (f->kind == KIND_INT64)
        return read_int(value, INT64_MAX, member) && (f->has_zero || *(int64_t *)member != 0);
    if (f->kind == KIND_NAME)
        return *(const char **)member = value, 1;
    if (f->kind == KIND_INT32) {
        int64_t number = f->values ? index_of(f->values, value) : 0;
        int ok = f->values ? number > 0 : read_int(value, INT32_MAX, &number);
        *(int32_t *)member = (int32_t)number;
        return ok && (f->has_zero || number != 0);
    }
    double *values = *lists;
    int32_t count = read_list(value, values);
    if (count < 0)
        return 0;
    *lists += count;
    return f->kind == KIND_SECTIONS ? store_sections(&config->desc, values, count)
           : f->kind == KIND_AXES   ? store_axes(config, values, count)
                                    : store_reals(&config->desc, member, values, count);
}

static const char *expected(const field *f) {
    static const char *const kinds[] = {"a whole number of 32 bits",
                                        "a whole number of 64 bits",
                                        "a number",
                                        "at most 4 whole numbers",
                                        "as many numbers in each list",
                                        "an axis 0..3 for each pair",
                                        "a name"};
    return f->values ? f->values : kinds[f->kind];
}

/* Reads one "name=value", which it may cut up. */
static const char *parse_field(char *text, config_text *config, double **lists) {
    size_t length = strcspn(text, "=");
    const field *f = find(text, length);
    if (!f || text[length] != '=') {
        snprintf(message, sizeof message, "there is no field \"%.60s\"", text);
        return message;
    }
    char *value = text + length + 1;
    snprintf(message, sizeof message, "%s is \"%.60s\"; allowed is %s%s", f->name, value,
             expected(f), f->values || f->has_zero || f->kind > KIND_REAL ? "" : " other than 0");
    return store(f, config, value, lists) ? NULL : message;
}

const char *config_text_parse(const char *text, size_t length, config_text *config) {
    *config = (config_text){.desc = ROPE_DESC_INIT,
                            .append = ROPE_APPEND_DESC_INIT,
                            .attention = ROPE_ATTENTION_DESC_INIT,
                            .role = ROLE_Q,
                            .window_right = -1};
    config->strings = malloc(length + 1);
    config->lists = calloc(length + 1, sizeof(double));
    if (!config->strings || !config->lists)
        return "no memory for a configuration";
    memcpy(config->strings, text, length);
    config->strings[length] = '\0';
    double *lists = config->lists;
    const char *error = NULL;
    const locale_t own = use_point();
    for (char *at = config->strings, *next; at && *at && !error; at = next) {
        next = strchr(at, ' ');
        if (next)
            *next++ = '\0';
        error = parse_field(at, config, &lists);
    }
    give_back(own);
    return error;
}

void config_text_release(config_text *config) {
    free(config->lists);
    free(config->strings);
}

/* Text being written: what does not fit is counted, not stored. */
typedef struct writer {
    char *text;
    size_t size, used;
} writer;

#define WRITE(w, ...)                                                                              \
    ((w)->used +=                                                                                  \
     (size_t)snprintf((w)->used < (w)->size ? (w)->text + (w)->used : NULL,                        \
                      (w)->used < (w)->size ? (w)->size - (w)->used : 0, __VA_ARGS__))

static void write_list(writer *w, const field *f, const rope_desc *desc, const void *member) {
    const double *reals = f->kind == KIND_REALS ? *(const double *const *)member : NULL;
    const uint8_t *axes = f->kind == KIND_AXES ? *(const uint8_t *const *)member : NULL;
    int32_t count = f->kind == KIND_SECTIONS ? desc->axes
                    : axes                   ? desc->rotary_dim / 2
                                             : desc->factor_count;
    for (int32_t i = 0; i < count; i++)
        WRITE(w, "%s%.17g", i ? "," : "",
              reals  ? reals[i]
              : axes ? (double)axes[i]
                     : (double)desc->sections[i]);
}

static void write_value(writer *w, const field *f, const rope_desc *desc, const void *member) {
    const char *name = f->values;
    switch (f->kind) {
    case KIND_INT32:
        for (int32_t i = 1; name && i < *(const int32_t *)member; i++)
            name += word(name) + 1;
        if (name)
            WRITE(w, "%.*s", (int)word(name), name);
        else
            WRITE(w, "%d", *(const int32_t *)member);
        break;
    case KIND_INT64:
        WRITE(w, "%lld", (long long)*(const int64_t *)member);
        break;
    case KIND_REAL:
        WRITE(w, "%.17g", *(const double *)member);
        break;
    case KIND_NAME:
        WRITE(w, "%s", *(const char *const *)member);
        break;
    default:
        write_list(w, f, desc, member);
    }
}

size_t config_text_print(const rope_desc *desc, const rope_norm *norm, char *text, size_t size) {
    static const char zeros[sizeof(rope_desc)];
    static const size_t sizes[] = {
        4, 8, 8, sizeof desc->sections, sizeof(void *), sizeof(void *), sizeof(void *)};
    const config_text config = {.desc = *desc, .norm = *norm};
    writer w = {text, size, 0};
    const locale_t own = use_point();
    for (int i = 0; i < FIELD_COUNT; i++) {
        const void *member = (const char *)&config + fields[i].offset;
        if (memcmp(member, zeros, sizes[fields[i].kind]) == 0)
            continue;
        WRITE(&w, "%s%s=", w.used ? " " : "", fields[i].name);
        write_value(&w, &fields[i], desc, member);
    }
    give_back(own);
    return w.used;
}
