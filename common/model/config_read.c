/* What the fields of a configuration say, by the rules of Transformers. */
#include "common/model/config_fields.h"
#include "common/model/config_models.h"
#include "common/status.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A pass over the fields; after the first error every read gives 0 and changes nothing. */
typedef struct reading {
    rope_config *config;
    const char *model_type; /* that of the configuration */
    rope_status status;
} reading;

/* The field that counts, or NULL; the model's own where the configuration has none. */
static config_field *find(const reading *r, int scope, const char *name) {
    config_field *field = rope_config_find(r->config, scope, name);
    return field || scope != SCOPE_MODEL ? field : rope_config_find(r->config, SCOPE_DEFAULT, name);
}

void rope_config_describe(const config_field *field, char *text, size_t size) {
    if (field->kind == FIELD_FLAG)
        snprintf(text, size, field->number != 0 ? "true" : "false");
    else if (field->kind == FIELD_NUMBER)
        snprintf(text, size, "the number %g", field->number);
    else if (field->kind == FIELD_TEXT)
        snprintf(text, size, "the string \"%.60s\"", field->text);
    else
        snprintf(text, size, "%s", field->count ? "a list of numbers" : "a list or an object");
}

static void refuse_kind(reading *r, const config_field *field, const char *wanted) {
    char found[100];
    rope_config_describe(field, found, sizeof found);
    r->status =
        rope_fail(ROPE_ERROR_INVALID_VALUE, "%s is %s; allowed is %s", field->name, found, wanted);
}

/* A field of a kind, or NULL; marks it as read. */
static const config_field *read_field(reading *r, int scope, const char *name, field_kind kind) {
    static const char *const kinds[] = {"a number", "true or false", "a string",
                                        "a list of numbers"};
    config_field *field = find(r, scope, name);
    if (!field || r->status != ROPE_OK)
        return NULL;
    field->read = 1;
    if (field->kind == kind)
        return field;
    refuse_kind(r, field, kinds[kind]);
    return NULL;
}

/* A number under its names, best first, where it may stand and what it may be. */
typedef struct number_spec {
    const char *names[4];
    int scopes;
    double most;
    int whole, zero_is_absent;
} number_spec;

static double checked(reading *r, const number_spec *spec, const config_field *field) {
    double value = field->number;
    if (value == 0 && spec->zero_is_absent)
        return 0;
    if (value > 0 && value <= spec->most && (!spec->whole || value == floor(value)))
        return value;
    r->status =
        rope_fail(ROPE_ERROR_INVALID_VALUE, "%s is %g; allowed is %s > 0 and <= %.17g", field->name,
                  value, spec->whole ? "a whole number" : "a number", spec->most);
    return 0;
}

/* The number, or 0. rope_parameters go before the model's fields, and those before what its class
 * has; a second mention of the same value counts as read. */
static double number(reading *r, const number_spec *spec) {
    static const int order[] = {SCOPE_ROPE, SCOPE_MODEL, SCOPE_DEFAULT};
    const config_field *best = NULL;
    for (int s = 0; s < 3; s++)
        for (int i = 0; i < 4 && spec->names[i] && (spec->scopes & order[s]); i++) {
            config_field *field = rope_config_find(r->config, order[s], spec->names[i]);
            if (!best)
                best = read_field(r, order[s], spec->names[i], FIELD_NUMBER);
            else if (field && field->kind == FIELD_NUMBER && field->number == best->number)
                field->read = 1;
        }
    return best && r->status == ROPE_OK ? checked(r, spec, best) : 0;
}

#define REAL(...)                                                                                  \
    { {__VA_ARGS__}, SCOPE_ROPE | SCOPE_MODEL | SCOPE_DEFAULT, DBL_MAX, 0, 0 }
#define RULE_REAL(name)                                                                            \
    { {name}, SCOPE_ROPE, DBL_MAX, 0, 0 }
#define RULE_OPTION(name)                                                                          \
    { {name}, SCOPE_ROPE, DBL_MAX, 0, 1 }
#define WHOLE(most, ...)                                                                           \
    { {__VA_ARGS__}, SCOPE_MODEL | SCOPE_DEFAULT, most, 1, 0 }

static const number_spec rope_theta =
    REAL("rope_theta", "rotary_emb_base", "rotary_embedding_base");
static const number_spec global_theta = REAL("global_rope_theta");
static const number_spec local_theta = REAL("rope_local_base_freq", "local_rope_theta");
static const number_spec share = {
    {"partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_emb_fraction"},
    SCOPE_ROPE | SCOPE_MODEL | SCOPE_DEFAULT,
    1,
    0,
    0};
static const number_spec rotary_dim = WHOLE(ROPE_MAX_ROTARY_DIM, "rotary_dim");
static const number_spec head_dim =
    WHOLE(ROPE_MAX_HEAD_DIM, "head_dim", "attention_head_dim", "kv_channels");
static const number_spec global_head_dim = WHOLE(ROPE_MAX_HEAD_DIM, "global_head_dim");
static const number_spec hidden_size = WHOLE(INT32_MAX, "hidden_size", "n_embd", "d_model");
static const number_spec heads = WHOLE(INT32_MAX, "num_attention_heads", "n_head", "n_heads");
static const number_spec kv_heads =
    WHOLE(INT32_MAX, "num_key_value_heads", "num_kv_heads", "kv_n_heads");
static const number_spec global_kv_heads = WHOLE(INT32_MAX, "num_global_key_value_heads");
static const number_spec nope_dim = WHOLE(ROPE_MAX_HEAD_DIM, "qk_nope_head_dim");
static const number_spec rope_dim = WHOLE(ROPE_MAX_ROTARY_DIM, "qk_rope_head_dim");
static const number_spec latent_dim = WHOLE(ROPE_MAX_HEAD_DIM, "kv_lora_rank");
static const number_spec longest =
    WHOLE(0x1p53, "max_position_embeddings", "n_positions", "max_seq_len");
static const number_spec model_original = WHOLE(0x1p53, "original_max_position_embeddings");
static const number_spec rope_original = {
    {"original_max_position_embeddings"}, SCOPE_ROPE, 0x1p53, 1, 0};
static const number_spec factor = RULE_REAL("factor");
static const number_spec low_freq_factor = RULE_REAL("low_freq_factor");
static const number_spec high_freq_factor = RULE_REAL("high_freq_factor");
static const number_spec attention_factor = RULE_REAL("attention_factor");
static const number_spec short_mscale = RULE_REAL("short_mscale");
static const number_spec long_mscale = RULE_REAL("long_mscale");
static const number_spec alpha = RULE_OPTION("alpha");
static const number_spec beta_fast = RULE_OPTION("beta_fast");
static const number_spec beta_slow = RULE_OPTION("beta_slow");
static const number_spec mscale = RULE_OPTION("mscale");
static const number_spec mscale_all_dim = RULE_OPTION("mscale_all_dim");
static const number_spec norm_eps = {{"rms_norm_eps"}, SCOPE_MODEL | SCOPE_DEFAULT, FLT_MAX, 0, 0};

/* A boolean, or `absent`. */
static int flag(reading *r, int scope, const char *name, int absent) {
    config_field *field = find(r, scope, name);
    if (!field || r->status != ROPE_OK)
        return absent;
    field->read = 1;
    if (field->kind > FIELD_FLAG || (field->number != 0 && field->number != 1))
        refuse_kind(r, field, "true or false");
    return field->number != 0;
}

/* Whether a number is set, read or not, and not 0. */
static int states(const reading *r, const char *name) {
    const config_field *field = find(r, SCOPE_ROPE, name);
    return field && field->kind == FIELD_NUMBER && field->number != 0;
}

/* What no descriptor says. */
static void refuse_model(reading *r) {
    static const struct {
        const char *model_type, *why;
    } refused[] = {{"clvp_encoder", "takes the part that rotates from projection_dim"},
                   {"dinov3_vit", "turns by coordinates of patches"},
                   {"eomt_dinov3", "turns by coordinates of patches"},
                   {"lightglue", "turns by coordinates of keypoints"},
                   {"sapiens2", "turns by coordinates of patches"},
                   {"vjepa2", "turns by coordinates of patches"},
                   {"minimax_m3_vl", "states a rotary_dim that Transformers does not read"},
                   {"musicflamingo", "turns by time stamps in seconds"},
                   {"molmo2", "scales some layers alone (rope_scaling_layers)"}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (strcmp(refused[i].model_type, r->model_type) == 0)
            r->status = rope_fail(ROPE_ERROR_INVALID_VALUE,
                                  "model_type is \"%s\", which %s; allowed is a model that a "
                                  "descriptor can say",
                                  r->model_type, refused[i].why);
    if (rope_model_is_unrotated(r->model_type))
        r->status = rope_fail(ROPE_ERROR_INVALID_VALUE,
                              "model_type is \"%s\"; allowed is another, as nothing rotates in it",
                              r->model_type);
}

/* Without a trailing "_text" or "_text_model". */
static void read_model_type(reading *r) {
    char *own = r->config->model_type;
    const config_field *field = read_field(r, SCOPE_MODEL, "model_type", FIELD_TEXT);
    if (!field)
        return;
    strcpy(own, r->config->model ? r->config->model->model_type : field->text);
    char *end = strstr(own, "_text");
    if (end && (end[5] == '\0' || strcmp(end + 5, "_model") == 0))
        *end = '\0';
    refuse_model(r);
}

/* The base of the layer, which rope_parameters state, else the model's field, else its class. */
static double read_base(reading *r) {
    const layer_default *own = r->config->layer, *row = NULL;
    const int is_sliding = strcmp(r->config->layer_type, "sliding_attention") == 0;
    double base = number(r, &rope_theta);
    if (!own) { /* Gemma 3 and ModernBERT as first published have bases for full and sliding layers
                 */
        const double local = number(r, &local_theta), global = number(r, &global_theta);
        const double layers = is_sliding && local != 0 ? local : global;
        return layers != 0 ? layers : base;
    }
    const config_field *stated = rope_config_find(r->config, SCOPE_ROPE, "rope_theta");
    while ((row = rope_layer_default(r->config->model, row))) {
        config_field *of_row =
            row->base_name ? rope_config_find(r->config, SCOPE_MODEL, row->base_name) : NULL;
        if (of_row && row != own)
            of_row->read = 1;
        if (row != own || !row->base_name || strcmp(row->base_name, "rope_theta") == 0)
            continue;
        const number_spec of_layers = {{row->base_name}, SCOPE_MODEL, DBL_MAX, 0, 0};
        const double value = number(r, &of_layers);
        if (!stated)
            base = value;
    }
    if (!own->base_name && !stated)
        base = 0;
    return base != 0 ? base : own->base;
}

static void read_dtype(reading *r, rope_desc *desc, rope_model *model) {
    static const char *const names[] = {"float32", "float16", "bfloat16", "float64"};
    const config_field *old = read_field(r, SCOPE_MODEL, "torch_dtype", FIELD_TEXT);
    const config_field *field = read_field(r, SCOPE_MODEL, "dtype", FIELD_TEXT);
    if (!field)
        field = old;
    desc->dtype = ROPE_F32;
    model->states_dtype = field != NULL;
    if (!field)
        return;
    const char *text = strncmp(field->text, "torch.", 6) == 0 ? field->text + 6 : field->text;
    for (int32_t i = 0; i < 4; i++)
        if (strcmp(text, names[i]) == 0) {
            desc->dtype = ROPE_F32 + i;
            return;
        }
    r->status = rope_fail(ROPE_ERROR_INVALID_VALUE,
                          "%s is \"%s\"; allowed is float32, float16, bfloat16 or float64",
                          field->name, field->text);
}

static int32_t rule_named(const char *name) {
    static const struct {
        const char *name;
        int32_t type;
    } rules[] = {
        {"default", ROPE_TYPE_DEFAULT},
        {"mrope", ROPE_TYPE_DEFAULT},
        {"linear", ROPE_TYPE_LINEAR},
        {"dynamic", ROPE_TYPE_DYNAMIC},
        {"yarn", ROPE_TYPE_YARN},
        {"longrope", ROPE_TYPE_LONGROPE},
        {"su", ROPE_TYPE_LONGROPE},
        {"llama3", ROPE_TYPE_LLAMA3},
        {"proportional", ROPE_TYPE_PROPORTIONAL},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (strcmp(name, rules[i].name) == 0)
            return rules[i].type;
    return 0;
}

static void read_rope_type(reading *r, rope_desc *desc) {
    desc->rope_type = ROPE_TYPE_DEFAULT;
    config_field *old = find(r, SCOPE_ROPE, "type");
    const config_field *field = read_field(r, SCOPE_ROPE, "rope_type", FIELD_TEXT);
    if (!field)
        field = read_field(r, SCOPE_ROPE, "type", FIELD_TEXT);
    if (!field)
        return;
    desc->rope_type = rule_named(field->text);
    if (old && old->kind == FIELD_TEXT && rule_named(old->text) == desc->rope_type)
        old->read = 1;
    if (desc->rope_type == 0)
        r->status = rope_fail(ROPE_ERROR_INVALID_VALUE,
                              "%s is \"%s\"; allowed is default, mrope, linear, dynamic, yarn, "
                              "longrope, su, llama3 or proportional",
                              field->name, field->text);
    if (desc->rope_type == ROPE_TYPE_YARN && strncmp(r->model_type, "phi3", 4) == 0)
        desc->rope_type = ROPE_TYPE_LONGROPE;
}

/* Transformers lets the model's field go before that of rope_parameters. */
static int64_t read_original(reading *r, int64_t max_position_embeddings) {
    double value = number(r, &model_original);
    if (value == 0)
        value = number(r, &rope_original);
    return value != 0 ? (int64_t)value : max_position_embeddings;
}

static void read_yarn(reading *r, rope_desc *desc, int64_t max_position_embeddings) {
    desc->original_max_position_embeddings = read_original(r, max_position_embeddings);
    desc->factor = number(r, &factor);
    if (desc->factor == 0 && desc->original_max_position_embeddings != 0)
        desc->factor =
            (double)max_position_embeddings / (double)desc->original_max_position_embeddings;
    desc->beta_fast = number(r, &beta_fast);
    desc->beta_slow = number(r, &beta_slow);
    desc->truncate = flag(r, SCOPE_ROPE, "truncate", 1) ? ROPE_TRUNCATE_ON : ROPE_TRUNCATE_OFF;
    desc->attention_factor = number(r, &attention_factor);
    if (desc->attention_factor == 0 && strcmp(r->model_type, "deepseek_v4") == 0 &&
        !r->config->by_layer)
        desc->attention_factor = 1;
    if (desc->attention_factor == 0 && states(r, "mscale") && states(r, "mscale_all_dim")) {
        desc->mscale = number(r, &mscale);
        desc->mscale_all_dim = number(r, &mscale_all_dim);
    }
}

static void read_longrope(reading *r, rope_desc *desc, int64_t max_position_embeddings) {
    desc->original_max_position_embeddings = read_original(r, max_position_embeddings);
    desc->max_position_embeddings = max_position_embeddings;
    desc->factor = number(r, &factor);
    desc->attention_factor = number(r, &attention_factor);
    if (desc->attention_factor == 0) {
        desc->short_mscale = number(r, &short_mscale);
        desc->long_mscale = number(r, &long_mscale);
    }
    const config_field *few = read_field(r, SCOPE_ROPE, "short_factor", FIELD_LIST);
    const config_field *many = read_field(r, SCOPE_ROPE, "long_factor", FIELD_LIST);
    if (r->status != ROPE_OK)
        return;
    if (!few || !many) {
        r->status = rope_fail(ROPE_ERROR_INVALID_VALUE,
                              "%s is not given; allowed is a list of rotary_dim / 2 numbers",
                              few ? "long_factor" : "short_factor");
        return;
    }
    if (few->count != many->count) {
        r->status = rope_fail(ROPE_ERROR_INVALID_VALUE,
                              "short_factor has %d entries and long_factor %d; allowed is "
                              "rotary_dim / 2 in both",
                              few->count, many->count);
        return;
    }
    desc->short_factor = few->list;
    desc->long_factor = many->list;
    desc->factor_count = few->count;
}

static void read_dynamic(reading *r, rope_desc *desc, int64_t max_position_embeddings) {
    desc->alpha = number(r, &alpha);
    if (desc->alpha != 0)
        return;
    desc->factor = number(r, &factor);
    desc->max_position_embeddings = max_position_embeddings;
}

static void read_rule(reading *r, rope_desc *desc, int64_t max_position_embeddings) {
    desc->rope_theta = read_base(r);
    if (desc->rope_theta == 0 && r->model_type[0] && r->status == ROPE_OK)
        r->status = rope_fail(ROPE_ERROR_INVALID_VALUE,
                              "rope_theta is not given and model_type \"%.60s\" is not known; "
                              "allowed is rope_theta, the base of its frequencies",
                              r->model_type);
    switch (desc->rope_type) {
    case ROPE_TYPE_LINEAR:
    case ROPE_TYPE_PROPORTIONAL:
        desc->factor = number(r, &factor);
        break;
    case ROPE_TYPE_DYNAMIC:
        read_dynamic(r, desc, max_position_embeddings);
        break;
    case ROPE_TYPE_YARN:
        read_yarn(r, desc, max_position_embeddings);
        break;
    case ROPE_TYPE_LONGROPE:
        read_longrope(r, desc, max_position_embeddings);
        break;
    case ROPE_TYPE_LLAMA3:
        desc->original_max_position_embeddings = read_original(r, max_position_embeddings);
        desc->factor = number(r, &factor);
        desc->low_freq_factor = number(r, &low_freq_factor);
        desc->high_freq_factor = number(r, &high_freq_factor);
        break;
    }
}

static int is_full(const reading *r) {
    return strcmp(r->config->layer_type, "full_attention") == 0;
}

/* Full layers of Gemma 4 may have fewer key heads, which are their values too. */
static int64_t key_heads(reading *r) {
    const int64_t usual = (int64_t)number(r, &kv_heads),
                  full = (int64_t)number(r, &global_kv_heads);
    return full != 0 && is_full(r) && flag(r, SCOPE_MODEL, "attention_k_eq_v", 1) ? full : usual;
}

static void read_heads(reading *r, rope_model *model) {
    model->num_attention_heads = (int64_t)number(r, &heads);
    model->num_key_value_heads = key_heads(r);
    int shared = flag(r, SCOPE_MODEL, "multi_query", 0) &&
                 !flag(r, SCOPE_MODEL, "new_decoder_architecture", 0);
    if (model->num_key_value_heads == 0)
        model->num_key_value_heads = shared ? 1 : model->num_attention_heads;
    model->max_position_embeddings = (int64_t)number(r, &longest);
}

/* 0 leaves the width that the caller supposes. */
static void state_width(rope_desc *desc, int32_t width) {
    if (width != 0)
        desc->head_dim = width;
}

/* The share of a head that rotates, else that of the layer's row; 0: neither says any. */
static double read_share(reading *r) {
    const double part = number(r, &share);
    return part == 0 && r->config->layer ? r->config->layer->share : part;
}

/* DeepSeek-V4 rotates the last elements of q and k. A share that it states goes before the window,
 * and the window before the model's own share. */
static void read_last_elements(reading *r, rope_desc *desc, int32_t window) {
    const double part = read_share(r);
    const int by_window = rope_config_find(r->config, SCOPE_MODEL, "qk_rope_head_dim") != NULL &&
                          !rope_config_find(r->config, SCOPE_MODEL, share.names[0]);
    state_width(desc, (int32_t)number(r, &head_dim));
    desc->rotary_dim = part == 0 || by_window ? window : (int32_t)(desc->head_dim * part);
    desc->rotary_offset = desc->head_dim - desc->rotary_dim;
}

/* Multi-head latent attention: q rotates its last elements, k has only those, once for all heads.
 */
static void read_latent(reading *r, rope_desc *desc, rope_model *model, int32_t window) {
    int32_t nope = (int32_t)number(r, &nope_dim);
    if (nope == 0) {
        read_last_elements(r, desc, window);
        return;
    }
    (void)number(r, &share); /* of the same window */
    desc->rotary_dim = window;
    desc->head_dim = nope + window;
    desc->rotary_offset = nope;
    desc->k_head_dim = window;
    model->num_key_value_heads = 1;
    model->kv_lora_rank = (int32_t)number(r, &latent_dim);
}

static int is_known(const reading *r) {
    for (size_t i = 0; i < sizeof model_pairings / sizeof model_pairings[0]; i++)
        if (strcmp(model_pairings[i].model_type, r->model_type) == 0)
            return 1;
    return r->config->model || r->model_type[0] == '\0';
}

/* Models that Transformers has pass over position_embedding_type, but for these. */
static int reads_position_kind(const reading *r) {
    return !is_known(r) || strcmp(r->model_type, "esm") == 0 ||
           strcmp(r->model_type, "granitemoehybrid") == 0;
}

static void read_position_kind(reading *r, const char *name) {
    const config_field *kind = read_field(r, SCOPE_MODEL, name, FIELD_TEXT);
    if (kind && strcmp(kind->text, "rotary") != 0 && strcmp(kind->text, "rope") != 0)
        r->status = rope_fail(ROPE_ERROR_INVALID_VALUE,
                              "%s is \"%s\"; allowed is rotary or rope, as nothing rotates "
                              "otherwise",
                              name, kind->text);
}

/* Fields that say that a model, or that this configuration of it, does not rotate. */
static void read_switches(reading *r) {
    static const struct {
        const char *name;
        int on;
    } switches[] = {
        {"alibi", 0},        /* Falcon, MPT */
        {"rope", 1},         /* MPT */
        {"rotary", 1},       /* GPT-J */
        {"use_mem_rope", 1}, /* Zamba 2 */
        {"use_rope", 1},
        {"use_rotary_embedding", 1}, /* CLVP */
        {"use_rotary_embeddings", 1},
        {"use_rotary_position_embeddings", 1},
    };
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++)
        if (flag(r, SCOPE_MODEL, switches[i].name, switches[i].on) != switches[i].on)
            r->status =
                rope_fail(ROPE_ERROR_INVALID_VALUE,
                          "%s is %s; allowed is %s, as nothing rotates otherwise", switches[i].name,
                          switches[i].on ? "false" : "true", switches[i].on ? "true" : "false");
    read_position_kind(r, "position_embeddings_type");
    if (reads_position_kind(r))
        read_position_kind(r, "position_embedding_type");
}

static void read_window(reading *r, rope_desc *desc) {
    const double part = read_share(r);
    if (desc->rope_type == ROPE_TYPE_PROPORTIONAL) {
        desc->partial_rotary_factor = part;
        return;
    }
    desc->rotary_dim =
        part != 0 ? (int32_t)(desc->head_dim * part) : (int32_t)number(r, &rotary_dim);
    if (part != 0 && desc->rotary_dim == 0 && r->status == ROPE_OK)
        r->status = rope_fail(ROPE_ERROR_INVALID_VALUE,
                              "partial_rotary_factor is %g; allowed is at least 2 elements of "
                              "head_dim %d",
                              part, desc->head_dim);
}

/* Full layers of Gemma 4 have wider heads than sliding ones. */
static int32_t head_dim_of(reading *r) {
    const int32_t usual = (int32_t)number(r, &head_dim),
                  full = (int32_t)number(r, &global_head_dim);
    return full != 0 && is_full(r) ? full : usual;
}

static void read_shape(reading *r, rope_desc *desc, rope_model *model) {
    read_heads(r, model);
    int32_t window = (int32_t)number(r, &rope_dim);
    if (window != 0) {
        read_latent(r, desc, model, window);
        return;
    }
    int32_t width = head_dim_of(r);
    if (width == 0 && model->num_attention_heads != 0)
        width = (int32_t)((int64_t)number(r, &hidden_size) / model->num_attention_heads);
    state_width(desc, width);
    if (desc->head_dim == 0 && r->status == ROPE_OK)
        r->status = rope_fail(ROPE_ERROR_INVALID_VALUE,
                              "head_dim is not given; allowed is head_dim, or hidden_size and "
                              "num_attention_heads");
    read_window(r, desc);
}

static void read_pairing(reading *r, rope_desc *desc) {
    for (size_t i = 0; i < sizeof model_pairings / sizeof model_pairings[0]; i++)
        if (strcmp(model_pairings[i].model_type, r->model_type) == 0) {
            desc->pairing_in = model_pairings[i].in;
            desc->pairing_out = model_pairings[i].out;
        }
    const int whole = flag(r, SCOPE_MODEL, "rotary_emb_interleaved", -1); /* NomicBert */
    if (whole >= 0)
        desc->pairing_in = desc->pairing_out =
            whole ? ROPE_PAIRING_INTERLEAVED : ROPE_PAIRING_HALF_SPLIT;
    int interleave = flag(r, SCOPE_MODEL, "rope_interleave", -1);
    if (interleave < 0)
        return;
    desc->pairing_in = interleave ? ROPE_PAIRING_INTERLEAVED : ROPE_PAIRING_HALF_SPLIT;
    desc->pairing_out = ROPE_PAIRING_HALF_SPLIT;
}

/* NanoChat turns the other way. */
static void read_direction(const reading *r, rope_desc *desc) {
    if (strcmp(r->model_type, "nanochat") == 0)
        desc->direction = ROPE_TRANSPOSE;
}

static const model_axes *axes_of(const reading *r) {
    for (size_t i = 0; i < sizeof model_axis_layouts / sizeof model_axis_layouts[0]; i++)
        if (strcmp(model_axis_layouts[i].model_type, r->model_type) == 0)
            return &model_axis_layouts[i];
    return NULL;
}

static void read_sections(reading *r, rope_desc *desc, const config_field *field) {
    if (field->count < 1 || field->count > ROPE_MAX_AXES) {
        r->status =
            rope_fail(ROPE_ERROR_INVALID_VALUE, "mrope_section has %d entries; allowed is 1..%d",
                      field->count, ROPE_MAX_AXES);
        return;
    }
    desc->axes = field->count;
    for (int32_t a = 0; a < field->count; a++) {
        double n = field->list[a];
        if (!(n >= 0 && n <= ROPE_MAX_ROTARY_DIM && n == floor(n))) {
            r->status = rope_fail(ROPE_ERROR_INVALID_VALUE,
                                  "mrope_section[%d] is %g; allowed is a whole number in 0..%d", a,
                                  n, ROPE_MAX_ROTARY_DIM);
            return;
        }
        desc->sections[a] = (int32_t)n;
    }
}

static void read_axes(reading *r, rope_desc *desc) {
    const model_axes *model = axes_of(r);
    const config_field *field = read_field(r, SCOPE_ROPE, "mrope_section", FIELD_LIST);
    if (!field && !model)
        return;
    int interleaved = flag(r, SCOPE_ROPE, "mrope_interleaved", 0);
    desc->axis_layout = model         ? model->layout
                        : interleaved ? ROPE_AXES_INTERLEAVED
                                      : ROPE_AXES_CHUNKED;
    if (field) {
        read_sections(r, desc, field);
    } else {
        desc->axes = 3;
        memcpy(desc->sections, model->sections, sizeof model->sections);
    }
    if (desc->axis_layout != ROPE_AXES_ALTERNATING)
        return;
    /* Ernie 4.5 VL lists height, width, time. */
    int32_t height = desc->sections[0], width = desc->sections[1];
    desc->sections[0] = desc->sections[2];
    desc->sections[1] = height;
    desc->sections[2] = width;
}

/* How the fields of a model were read that nobody compared with Transformers. */
static void take_note(const reading *r, const rope_desc *desc) {
    char *note = r->config->note;
    note[0] = '\0';
    if (is_known(r))
        return;
    snprintf(note, sizeof r->config->note,
             "model_type \"%.60s\" is not known: its fields were read as those of Llama, %s pairs, "
             "%d of %d elements, base %g",
             r->model_type,
             desc->pairing_in == ROPE_PAIRING_INTERLEAVED ? "interleaved" : "half-split",
             desc->rotary_dim ? desc->rotary_dim : desc->head_dim, desc->head_dim,
             desc->rope_theta != 0 ? desc->rope_theta : 10000.0);
}

rope_status rope_config_read(rope_config *config, rope_desc *desc, rope_model *model) {
    reading r = {.config = config, .model_type = config->model_type};
    for (config_field *field = config->first; field; field = field->next)
        field->read = 0;
    read_model_type(&r);
    read_switches(&r);
    read_dtype(&r, desc, model);
    read_rope_type(&r, desc);
    read_shape(&r, desc, model);
    read_pairing(&r, desc);
    read_direction(&r, desc);
    read_rule(&r, desc, model->max_position_embeddings);
    read_axes(&r, desc);
    take_note(&r, desc);
    return r.status;
}

rope_status rope_config_read_norm(rope_config *config, rope_norm *norm) {
    reading r = {.config = config, .model_type = config->model_type};
    read_model_type(&r);
    for (size_t i = 0; i < sizeof model_norms / sizeof model_norms[0]; i++)
        if (strcmp(model_norms[i].model_type, r.model_type) == 0)
            *norm = (rope_norm){.type = ROPE_NORM_RMS,
                                .scope = model_norms[i].scope,
                                .weight = model_norms[i].weight,
                                .rounding = model_norms[i].rounding,
                                .eps = number(&r, &norm_eps)};
    return r.status;
}
