#include "bench/commands/info_config.h"

#include "bench/options/case_name.h"
#include "bench/options/config_file.h"
#include "bench/output/message.h"
#include "bench/output/table.h"
#include "bench/support/dtype.h"

#include <string.h>

/* A kind of layer, and options that have what the configuration says of it alone. */
typedef struct layer_kind {
    rope_layer_kind of;
    options o;
    rope_config *config; /* which owns what desc points to */
} layer_kind;

static bool read_kind(const options *o, layer_kind *kind) {
    rope_model model = {.struct_size = sizeof model};
    kind->o = *o;
    kind->o.desc = (rope_desc)ROPE_DESC_INIT;
    kind->config = config_file_read(o->config, *kind->of.name ? kind->of.name : NULL);
    if (!kind->config ||
        !succeeded(rope_config_finish(kind->config, &kind->o.desc, &model), o->config))
        return false;
    if (!o->allow_unread && rope_config_check(kind->config) != ROPE_OK) {
        message("%s, %s: %s (--allow-unread)", o->config, kind->of.name, rope_last_error());
        return false;
    }
    kind->o.q_heads = model.num_attention_heads;
    kind->o.k_heads = model.num_key_value_heads;
    return true;
}

static void print_count(table *t, int64_t count, const char *none) {
    if (count)
        table_cell(t, "%lld", (long long)count);
    else
        table_cell(t, "%s", none);
}

static void print_rotation(table *t, const options *o) {
    const rope_desc *d = &o->desc;
    cJSON *value = NULL;
    for (int32_t i = 0; i < option_field_count && !value; i++)
        if (strcmp(option_fields[i].name, "rope-type") == 0)
            value = options_value(o, &option_fields[i]);
    const char *rule = value ? value->valuestring : "default";
    table_cell(t, "%.10g", d->rope_theta > 0 ? d->rope_theta : 10000.0);
    if (d->factor != 0)
        table_cell(t, "%s, factor %g", rule, d->factor);
    else
        table_cell(t, "%s", rule);
    table_cell(t, "%d of %d", d->rotary_dim ? d->rotary_dim : d->head_dim, d->head_dim);
    cJSON_Delete(value);
}

static void print_kind(table *t, const layer_kind *kind) {
    table_cell(t, "%s", *kind->of.name ? kind->of.name : "all");
    print_count(t, kind->of.layers, "-");
    print_count(t, kind->of.unrotated, "-");
    if (kind->of.rotates) {
        print_rotation(t, &kind->o);
    } else {
        table_cell(t, "-");
        table_cell(t, "none");
        table_cell(t, "0");
    }
    print_count(t, kind->o.q_heads, "-");
    print_count(t, kind->o.k_heads, "-");
    print_count(t, kind->of.window, "-");
    print_count(t, kind->of.chunk, "-");
}

static void record_kind(record_list *list, const layer_kind *kind) {
    cJSON *record = record_add(list);
    cJSON_AddStringToObject(record, "kind", kind->of.name);
    cJSON_AddBoolToObject(record, "rotates", kind->of.rotates);
    cJSON_AddNumberToObject(record, "layers", kind->of.layers);
    cJSON_AddNumberToObject(record, "unrotated", kind->of.unrotated);
    cJSON_AddNumberToObject(record, "window", (double)kind->of.window);
    cJSON_AddNumberToObject(record, "chunk", (double)kind->of.chunk);
    if (kind->of.rotates)
        record_layer(record, &kind->o);
}

static bool print_kinds(const options *o, const rope_config *config, record_list *list, table *t) {
    bool done = true;
    for (int32_t i = 0; i < rope_config_kind_count(config) && done; i++) {
        layer_kind kind = {.of = {.struct_size = sizeof kind.of}};
        done = succeeded(rope_config_kind_get(config, i, &kind.of), o->config) &&
               (!kind.of.rotates || read_kind(o, &kind));
        if (done) {
            print_kind(t, &kind);
            record_kind(list, &kind);
        }
        rope_config_destroy(kind.config);
    }
    return done;
}

bool info_config(const options *o, record_list *list, FILE *file) {
    rope_config *config = config_file_read(o->config, o->layer_type);
    table t;
    table_begin(
        &t, "kind of layer|layers|unrotated|theta|rule|rotary dim|q heads|k heads|window|chunk");
    const bool done = config && print_kinds(o, config, list, &t);
    if (done) {
        table_print(&t, file);
        fputc('\n', file);
    }
    table_end(&t);
    rope_config_destroy(config);
    return done;
}
