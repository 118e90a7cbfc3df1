#define _GNU_SOURCE
#include "bench/options/options.h"

#include "bench/options/config_file.h"
#include "bench/options/option_value.h"
#include "bench/output/message.h"
#include "bench/support/dtype.h"

#include <stdlib.h>
#include <string.h>

static const option_field *find_field(const char *name, size_t length) {
    for (int32_t i = 0; i < option_field_count; i++)
        if (strlen(option_fields[i].name) == length &&
            memcmp(option_fields[i].name, name, length) == 0)
            return &option_fields[i];
    return NULL;
}

static const char *given(const options *o, const char *name) {
    return o->value[find_field(name, strlen(name)) - option_fields];
}

bool options_apply(options *o, const char *settings) {
    char *copy = pool_keep(o->pool, strdup(settings), free);
    char *rest = NULL;
    for (char *word = copy ? strtok_r(copy, " ", &rest) : NULL; word;
         word = strtok_r(NULL, " ", &rest)) {
        const size_t length = strcspn(word, "=");
        const option_field *field = find_field(word + 2, length - 2);
        if (!field)
            message("%s is no option", word);
        if (!field || !option_store(o, field, word[length] ? word + length + 1 : NULL))
            return false;
    }
    return copy != NULL;
}

/* --- arguments --- */

/* Notes the value of each argument, the last of a name. */
static bool note_arguments(options *o, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *word = strcmp(argv[i], "-h") == 0 ? "--help" : argv[i];
        const size_t length = strcspn(word, "=");
        const option_field *field =
            strncmp(word, "--", 2) == 0 ? find_field(word + 2, length - 2) : NULL;
        if (!field || !(field->commands & o->command)) {
            message("\"%.60s\" is no option; allowed is what --help lists", word);
            return false;
        }
        const bool flag = field->kind == OPTION_FLAG;
        const char *value = word[length] ? word + length + 1 : flag ? "" : argv[++i];
        if (!value || (flag && word[length])) {
            message("--%s has %s value; allowed is %s", field->name, flag ? "a" : "no",
                    flag ? "none" : field->values);
            return false;
        }
        o->value[field - option_fields] = value;
    }
    return true;
}

/* Stores what was given, of the model's configuration or of all else. */
static bool store_given(options *o, bool of_model) {
    for (int32_t i = 0; i < option_field_count; i++) {
        const option_field *field = &option_fields[i];
        if (o->value[i] && (field->group == OPTION_MODEL) == of_model &&
            !option_store(o, field, field->kind == OPTION_FLAG ? NULL : o->value[i]))
            return false;
    }
    return true;
}

static void set_defaults(options *o) {
    o->desc = (rope_desc)ROPE_DESC_INIT;
    o->tokens = o->q_heads = o->k_heads = o->v_heads = -1;
    o->batch = o->seed = 1;
    o->max_position = 131071;
}

/* Behind the configuration, which states some of them. */
static void fill_defaults(options *o) {
    if (o->desc.dtype == 0)
        o->desc.dtype = ROPE_F32;
    if (o->dtype_is_assumed)
        o->desc.dtype = ROPE_BF16;
    if (o->desc.head_dim == 0)
        o->desc.head_dim = 128;
    if (o->q_heads < 0)
        o->q_heads = 32;
    if (o->k_heads < 0)
        o->k_heads = 8;
    if (o->layout == 0)
        o->layout = LAYOUT_BSHD;
}

options options_usual(void) {
    options o = {0};
    set_defaults(&o);
    fill_defaults(&o);
    return o;
}

/* --- what does not go together --- */

/* Names an option, its value and what is allowed; false. */
static bool refuse(const options *o, const char *name, const char *allowed, const char *by) {
    const bool flag = find_field(name, strlen(name))->kind == OPTION_FLAG;
    const char *value = flag ? "given" : given(o, name), *quote = flag || !value ? "" : "\"";
    message("--%s is %s%.60s%s; allowed %s%s", name, quote, value ? value : "not given", quote,
            allowed, by);
    return false;
}

/* The operations that read an option, as the reason of a refusal has them; NULL where the options'
 * does. */
static const char *readers(const options *o, const option_field *field) {
    if (option_is_store(field))
        return o->append || o->decode ? NULL : "--append or --decode";
    if (field->group == OPTION_APPEND)
        return o->append ? NULL : "--append";
    if (field->group == OPTION_ATTENTION)
        return o->attention ? NULL : "--attention";
    return field->group != OPTION_CACHE || o->append || o->attention ? NULL
                                                                     : "--append or --attention";
}

/* What only another operation would read is refused. */
static bool check_operation(const options *o) {
    if (o->attention && (o->append || o->in_place))
        return refuse(o, o->append ? "append" : "in-place", "is none with ", "--attention");
    for (int32_t i = 0; i < option_field_count; i++) {
        const char *by = o->value[i] ? readers(o, &option_fields[i]) : NULL;
        if (by)
            return refuse(o, option_fields[i].name, "is none without ", by);
    }
    return true;
}

/* Its tokens are rows of a batch, at indices that their positions say. */
static bool check_decode(const options *o) {
    static const char *const unread[] = {"backward", "cu-seqlens", "sequence-offsets"};
    static const char *const scales[] = {"k-scale", "v-scale"};
    const int32_t scale[] = {o->appends.k.scale, o->appends.v.scale};
    if (o->appends.cache != ROPE_CACHE_TABLE && o->appends.cache != ROPE_CACHE_SEQUENCE)
        return refuse(o, "kv-cache", "with --decode is ", "table|sequence");
    for (size_t i = 0; i < sizeof unread / sizeof unread[0]; i++)
        if (given(o, unread[i]))
            return refuse(o, unread[i], "is none with ", "--decode");
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        if (scale[i] > ROPE_SCALE_TENSOR)
            return refuse(o, scales[i], "with --decode is ", "tensor");
    return true;
}

/* Values that begin keys are stored as those. */
static bool share_store(options *o) {
    const rope_append_part *k = &o->appends.k;
    rope_append_part *v = &o->appends.v;
    if (!o->appends.cache)
        return refuse(o, "v-in-k", "is none without ", "--kv-cache");
    if (o->appends.v_head_dim > o->desc.head_dim) {
        message("--v-head-dim is %d; allowed with --v-in-k is 1..%d, as --head-dim",
                o->appends.v_head_dim, o->desc.head_dim);
        return false;
    }
    if (v->store_dtype && v->store_dtype != k->store_dtype)
        return refuse(o, "v-store-dtype", "with --v-in-k is ", "that of --k-store-dtype");
    if (v->scale && v->scale != k->scale)
        return refuse(o, "v-scale", "with --v-in-k is ", "that of --k-scale");
    v->store_dtype = k->store_dtype;
    v->scale = k->scale;
    return true;
}

static bool check_attention(options *o) {
    if (o->nondeterministic && !o->backward)
        return refuse(o, "nondeterministic", "is none without ", "--backward");
    return (!o->decode || check_decode(o)) && (!o->v_in_k || share_store(o));
}

/* Keys of the cache come alone, and are normalised already. */
static bool drop_tensors(options *o) {
    static const char *const names[] = {"q-heads", "v-heads"};
    int64_t *const heads[] = {&o->q_heads, &o->v_heads};
    if (o->appends.k_source != ROPE_SOURCE_CACHE)
        return true;
    for (int i = 0; i < 2; i++) {
        if (*heads[i] > 0 && given(o, names[i])) {
            message("--%s is \"%lld\"; allowed is 0 with --k-source=cache", names[i],
                    (long long)*heads[i]);
            return false;
        }
        *heads[i] = 0;
    }
    if (o->config)
        o->appends.q.norm = o->appends.k.norm = (rope_norm){0};
    return true;
}

bool options_parse(options *o, int argc, char **argv) {
    set_defaults(o);
    o->value = pool_alloc(o->pool, (size_t)option_field_count, sizeof *o->value);
    if (!o->value) {
        message("no memory for the options");
        return false;
    }
    if (!note_arguments(o, argc, argv) || !store_given(o, true))
        return false;
    o->help = given(o, "help") != NULL;
    o->append = given(o, "append") != NULL;
    if (o->help)
        return true;
    if (!o->config && o->command == COMMAND_DEMO)
        o->config = "llama-3.1-8b";
    if (o->config && !config_read(o))
        return false;
    if (o->layer_type && !o->config) {
        message("--layer-type is \"%.60s\"; allowed is with --config alone", o->layer_type);
        return false;
    }
    fill_defaults(o);
    if (!store_given(o, false))
        return false;
    if (given(o, "dtype"))
        o->dtype_is_assumed = false;
    return check_operation(o) && check_attention(o) && drop_tensors(o);
}

/* --- help --- */

/* Column of an option's text in --help, whose lines have 80 at most. */
#define HELP_COLUMN 29

void options_help(FILE *file, int32_t command) {
    option_group group = OPTION_GROUPS;
    for (int32_t i = 0; i < option_field_count; i++) {
        const option_field *field = &option_fields[i];
        if (!(field->commands & command))
            continue;
        if (field->group != group)
            fprintf(file, "%s%s:\n", group == OPTION_GROUPS ? "" : "\n",
                    option_group_names[field->group]);
        group = field->group;
        const int used = fprintf(file, "  --%s%s%s", field->name, field->values ? "=" : "",
                                 field->values ? field->values : "");
        const bool fits = used < HELP_COLUMN;
        fprintf(file, "%s%*s%s\n", fits ? "" : "\n", HELP_COLUMN - (fits ? used : 0), "",
                field->help);
    }
}
