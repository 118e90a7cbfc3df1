#define _GNU_SOURCE
#include "bench/options/options.h"

#include "bench/options/config_file.h"
#include "bench/options/option_value.h"
#include "bench/output/message.h"
#include "bench/support/dtype.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define FIELDS_MOST 192
/* What getopt_long returns for the option of field 0; above every character. */
#define FIRST_OPTION 1000

static const option_field *find_field(const char *name, size_t length) {
    for (int32_t i = 0; i < option_field_count; i++)
        if (strlen(option_fields[i].name) == length &&
            memcmp(option_fields[i].name, name, length) == 0)
            return &option_fields[i];
    return NULL;
}

static bool set(options *o, const char *name, const char *value) {
    const option_field *field = find_field(name, strlen(name));
    if (!field)
        message("--%s is no option", name);
    return field && option_store(o, field, value);
}

bool options_apply(options *o, const char *settings) {
    char *copy = pool_keep(o->pool, strdup(settings), free);
    char *rest = NULL;
    for (char *word = copy ? strtok_r(copy, " ", &rest) : NULL; word;
         word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        if (value)
            *value++ = '\0';
        if (!set(o, word + 2, value))
            return false;
    }
    return copy != NULL;
}

static void list_options(int32_t command, struct option *list) {
    int count = 0;
    for (int i = 0; i < option_field_count && count < FIELDS_MOST; i++) {
        const option_field *field = &option_fields[i];
        if (field->commands & command)
            list[count++] = (struct option){
                field->name, field->kind == OPTION_FLAG ? no_argument : required_argument, NULL,
                FIRST_OPTION + i};
    }
    list[count] = (struct option){0};
}

/* One pass over the arguments: only those by which the file is read, or all the others. */
static bool parse_pass(options *o, int argc, char **argv, bool file_pass) {
    struct option list[FIELDS_MOST + 1];
    list_options(o->command, list);
    optind = 0;
    int found;
    while ((found = getopt_long(argc, argv, "h", list, NULL)) != -1) {
        if (found == '?')
            return false;
        const option_field *field =
            found == 'h' ? find_field("help", 4) : &option_fields[found - FIRST_OPTION];
        bool of_file = field->offset == offsetof(options, config) ||
                       field->offset == offsetof(options, layer_type) ||
                       field->offset == offsetof(options, allow_unread) ||
                       field->offset == offsetof(options, append) ||
                       field->offset == offsetof(options, help);
        if (of_file != file_pass)
            continue;
        if (!option_store(o, field, optarg))
            return false;
        o->value[field - option_fields] = optarg ? optarg : "";
    }
    if (optind < argc)
        message("\"%s\" is no option of %s", argv[optind], argv[0]);
    return optind >= argc;
}

static void release_config(void *config) {
    rope_config_destroy(config);
}

static void report_ignored(const char *name, const rope_config *config) {
    char fields[512] = "";
    size_t used = 0;
    const char *field;
    for (int32_t i = 0; (field = rope_config_ignored(config, i)) && used < sizeof fields; i++)
        used += (size_t)snprintf(fields + used, sizeof fields - used, "%s%s", i ? ", " : "", field);
    if (used)
        message("%s: fields that nothing reads: %s", name, fields);
}

/* A row of MLA's cache: the latent, normalised as in Transformers, and what rotates of the key. */
static void take_latent(options *o, int32_t rank) {
    o->latent = rank;
    o->v_heads = 0;
    o->desc.k_head_dim += rank;
    o->desc.k_rotary_offset = rank;
    o->appends.k.norm = (rope_norm){.type = ROPE_NORM_RMS,
                                    .scope = ROPE_NORM_HEAD,
                                    .dim = rank,
                                    .weight = ROPE_NORM_WEIGHT,
                                    .rounding = ROPE_NORM_ROUND_TWICE,
                                    .eps = 1e-6};
}

static bool read_config(options *o) {
    rope_config *config = config_file_read(o->config, o->layer_type);
    rope_model model = {.struct_size = sizeof model};
    if (!config || !pool_keep(o->pool, config, release_config) ||
        !succeeded(rope_config_finish(config, &o->desc, &model), o->config) ||
        !succeeded(rope_append_config_norm(config, &o->appends.q.norm), o->config))
        return false;
    o->appends.k.norm = o->appends.q.norm;
    if (o->append && model.kv_lora_rank)
        take_latent(o, model.kv_lora_rank);
    if (!o->allow_unread && rope_config_check(config) != ROPE_OK) {
        message("%s: %s (--allow-unread)", o->config, rope_last_error());
        return false;
    }
    report_ignored(o->config, config);
    if (rope_config_note(config))
        message("%s: %s", o->config, rope_config_note(config));
    o->dtype_is_assumed = !model.states_dtype;
    o->q_heads = model.num_attention_heads > 0 ? model.num_attention_heads : o->q_heads;
    o->k_heads = model.num_key_value_heads > 0 ? model.num_key_value_heads : o->k_heads;
    return true;
}

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

const char *options_dtype(const options *o) {
    return o->dtype_is_assumed ? "bf16 (the config states no dtype)" : dtype_name(o->desc.dtype);
}

/* Whether settings as of options_apply name an option. */
static bool is_set(const char *name, const char *settings) {
    size_t length = strlen(name);
    for (const char *at = settings; (at = strstr(at, "--")); at += 2)
        if (strncmp(at + 2, name, length) == 0 && strchr("= ", at[2 + length]))
            return true;
    return false;
}

/* A word that a shell reads as this text. */
static void print_quoted(FILE *file, const char *text) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "_-+=./,:@%";
    if (*text && text[strspn(text, plain)] == '\0') {
        fputs(text, file);
        return;
    }
    fputc('\'', file);
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", file);
        else
            fputc(*text, file);
    fputc('\'', file);
}

const char *options_quoted(pool *memory, const char *text) {
    char *quoted = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&quoted, &size);
    if (file)
        print_quoted(file, text);
    if (!file || fclose(file) != 0) {
        free(quoted);
        quoted = NULL;
    }
    return pool_keep(memory, quoted, free);
}

void options_choice(const options *o, const option_field *field, char text[OPTIONS_CHOICE_BYTES]) {
    int32_t chosen = *(const int32_t *)(const void *)((const char *)o + field->offset);
    const char *at = field->values;
    for (chosen -= (int32_t)field->least; chosen > 1; chosen--)
        at += strcspn(at, "|") + 1;
    snprintf(text, OPTIONS_CHOICE_BYTES, "%.*s", (int)strcspn(at, "|"), at);
}

static void print_choice(FILE *file, const options *o, const char *name) {
    char text[OPTIONS_CHOICE_BYTES];
    options_choice(o, find_field(name, strlen(name)), text);
    fputs(text, file);
}

/* What becomes of q, k or v: norm, rotation, factor, and the type that is stored. */
static void describe_part(const options *o, char tensor, const rope_append_part *part, FILE *file) {
    const bool cached = o->appends.cache && tensor != 'q';
    char norm[] = {tensor, '-', 'n', 'o', 'r', 'm', '-', 't', 'y', 'p', 'e', '\0'};
    const char *space = " ";
    fprintf(file, "%c:", tensor);
    if (part->norm.type) {
        fputc(' ', file);
        print_choice(file, o, norm);
        fputs(" norm", file);
        if (part->norm.dim)
            fprintf(file, " of %d elements", part->norm.dim);
        fprintf(file, "%s", part->norm.weight == ROPE_NORM_ONE_PLUS_WEIGHT ? " by 1 + w" : "");
        space = ", ";
    }
    if (tensor != 'v' && o->appends.rotation != ROPE_ROTATION_OFF) {
        fprintf(file, "%srotation", space);
        space = ", ";
    }
    if (part->factor != 0)
        fprintf(file, "%sfactor %g", space, part->factor);
    fprintf(file, " to %s%s", cached ? "a cache in " : "",
            dtype_name(part->store_dtype ? part->store_dtype : o->desc.dtype));
}

static void describe_append(const options *o, FILE *file) {
    const rope_append_part *const parts[] = {&o->appends.q, &o->appends.k, &o->appends.v};
    const int64_t heads[] = {o->q_heads, o->k_heads, o->v_heads < 0 ? o->k_heads : o->v_heads};
    const char *between = "";
    for (int i = 0; i < 3; i++) {
        if (heads[i] == 0)
            continue;
        fputs(between, file);
        describe_part(o, "qkv"[i], parts[i], file);
        between = "; ";
    }
    fputc('\n', file);
}

static void describe_attention(const options *o, FILE *file) {
    print_choice(file, o, "mask");
    fputs(o->backward ? " attention and its backward" : " attention", file);
    if (o->backward && o->nondeterministic)
        fputs(", in any order", file);
    if (o->attends.window)
        fprintf(file, ", window %lld", (long long)o->attends.window);
    if (o->appends.cache)
        fprintf(file, ", %lld keys in a cache", (long long)(o->keys ? o->keys : o->tokens));
    fputc('\n', file);
}

void options_describe(const options *o, FILE *file) {
    const rope_desc *d = &o->desc;
    fprintf(file, "%d elements rotate, rule ", d->rotary_dim ? d->rotary_dim : d->head_dim);
    print_choice(file, o, "rope-type");
    if (d->rope_type != ROPE_TYPE_INV_FREQ)
        fprintf(file, ", theta %.10g", d->rope_theta > 0 ? d->rope_theta : 10000.0);
    fputs(", ", file);
    print_choice(file, o, "pairing-in");
    if (d->pairing_out && d->pairing_out != (d->pairing_in ? d->pairing_in : 1)) {
        fputs(" to ", file);
        print_choice(file, o, "pairing-out");
    }
    fputs(" pairs, positions ", file);
    if (o->position_ids > IDS_NONE) {
        print_choice(file, o, "position-ids");
        fputs(" ids, ", file);
    } else {
        fprintf(file, "from %lld, ", (long long)o->position_offset);
    }
    print_choice(file, o, "direction");
    fputc('\n', file);
    if (o->append)
        describe_append(o, file);
    if (o->attention)
        describe_attention(o, file);
}

const char *options_line(const options *o, const char *without) {
    static const char never[] = "--help --json --output= --list --resume --backend=";
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    const char *space = "";
    for (int32_t i = 0; file && i < option_field_count; i++) {
        const option_field *field = &option_fields[i];
        if (!o->value[i] || is_set(field->name, never) || is_set(field->name, without))
            continue;
        fprintf(file, "%s--%s%s", space, field->name, field->kind == OPTION_FLAG ? "" : "=");
        if (field->kind != OPTION_FLAG)
            print_quoted(file, o->value[i]);
        space = " ";
    }
    if (!file || fclose(file) != 0) {
        free(text);
        text = NULL;
    }
    return pool_keep(o->pool, text, free);
}

const char *options_command(const options *o, const char *command, const char *given,
                            const char *settings) {
    char *text = NULL;
    if (given && settings &&
        asprintf(&text, "ropekit %s --backend=%s%s%s%s%s", command, o->desc.backend,
                 *given ? " " : "", given, *settings ? " " : "", settings) < 0)
        text = NULL;
    return pool_keep(o->pool, text, free);
}

/* The operations that read an option, as the reason of a refusal has them; NULL where the options'
 * does. */
static const char *readers(const options *o, const option_field *field) {
    const bool append = strcmp(field->group, OPTION_APPEND) == 0;
    if (append || strcmp(field->group, OPTION_ATTENTION) == 0)
        return (append ? o->append : o->attention) ? NULL : append ? "--append" : "--attention";
    if (strcmp(field->group, OPTION_CACHE) == 0)
        return o->append || o->attention ? NULL : "--append or --attention";
    return NULL;
}

/* What only another operation would read is refused. */
static bool check_operation(const options *o) {
    if (o->attention && (o->append || o->in_place)) {
        message("--%s is given; allowed is none with --attention",
                o->append ? "append" : "in-place");
        return false;
    }
    for (int32_t i = 0; i < option_field_count; i++) {
        const option_field *field = &option_fields[i];
        const char *by = o->value[i] ? readers(o, field) : NULL;
        if (by && field->kind == OPTION_FLAG)
            message("--%s is given; allowed is none without %s", field->name, by);
        else if (by)
            message("--%s is \"%.60s\"; allowed is none without %s", field->name, o->value[i], by);
        if (by)
            return false;
    }
    return true;
}

/* Keys of the cache come alone. */
static bool drop_tensors(options *o) {
    static const char *const names[] = {"q-heads", "v-heads"};
    int64_t *const heads[] = {&o->q_heads, &o->v_heads};
    for (int i = 0; i < 2 && o->appends.k_source == ROPE_SOURCE_CACHE; i++) {
        if (*heads[i] > 0 && o->value[find_field(names[i], strlen(names[i])) - option_fields]) {
            message("--%s is \"%lld\"; allowed is 0 with --k-source=cache", names[i],
                    (long long)*heads[i]);
            return false;
        }
        *heads[i] = 0;
    }
    return true;
}

bool options_parse(options *o, int argc, char **argv) {
    o->desc = (rope_desc){.struct_size = sizeof o->desc};
    o->tokens = o->q_heads = o->k_heads = o->v_heads = -1;
    o->value = pool_alloc(o->pool, (size_t)option_field_count, sizeof *o->value);
    if (!o->value) {
        message("no memory for the options");
        return false;
    }
    o->batch = 1;
    o->seed = 1;
    o->max_position = 131071;
    if (!parse_pass(o, argc, argv, true))
        return false;
    if (o->help)
        return true;
    if (!o->config && o->command == COMMAND_DEMO)
        o->config = "llama-3.1-8b";
    if (o->config && !read_config(o))
        return false;
    if (o->layer_type && !o->config) {
        message("--layer-type is \"%.60s\"; allowed is with --config alone", o->layer_type);
        return false;
    }
    fill_defaults(o);
    if (!parse_pass(o, argc, argv, false))
        return false;
    if (o->value[find_field("dtype", 5) - option_fields])
        o->dtype_is_assumed = false;
    if (o->appends.k_source == ROPE_SOURCE_CACHE && o->config) /* its keys are normalised already */
        o->appends.q.norm = o->appends.k.norm = (rope_norm){0};
    return check_operation(o) && drop_tensors(o);
}

/* Column of an option's text in --help, whose lines have 80 at most. */
#define HELP_COLUMN 29

static void print_help(FILE *file, const option_field *field) {
    int used = fprintf(file, "  --%s%s%s", field->name, field->values ? "=" : "",
                       field->values ? field->values : "");
    bool fits = used < HELP_COLUMN;
    fprintf(file, "%s%*s%s\n", fits ? "" : "\n", HELP_COLUMN - (fits ? used : 0), "", field->help);
}

void options_help(FILE *file, int32_t command) {
    const char *group = "";
    for (int32_t i = 0; i < option_field_count; i++) {
        const option_field *field = &option_fields[i];
        if (!(field->commands & command))
            continue;
        if (strcmp(group, field->group) != 0)
            fprintf(file, "%s%s:\n", *group ? "\n" : "", field->group);
        group = field->group;
        print_help(file, field);
    }
}
