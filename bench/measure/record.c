#include "bench/measure/record.h"

#include "bench/measure/environment.h"
#include "bench/options/case_name.h"
#include "bench/support/dtype.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static void add_device(cJSON *document, const options *o, const rope_device_info *info) {
    cJSON *device = cJSON_AddObjectToObject(document, "device");
    cJSON_AddStringToObject(device, "backend", info->backend);
    cJSON_AddNumberToObject(device, "index", o->desc.device);
    cJSON_AddStringToObject(device, "name", info->name);
    cJSON_AddStringToObject(device, "features", info->features);
    cJSON_AddNumberToObject(device, "memory_bytes", (double)info->memory_bytes);
    cJSON_AddNumberToObject(device, "cache_bytes", (double)info->cache_bytes);
    cJSON_AddNumberToObject(device, "compute_units", info->compute_units);
    environment_add_driver(device);
}

void record_begin(record_list *list, const char *command, const options *o,
                  const rope_device_info *device) {
    char text[32];
    time_t now = time(NULL);
    struct tm utc;
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "schema", RECORD_SCHEMA);
    cJSON_AddNumberToObject(document, "version", RECORD_VERSION);
    cJSON_AddStringToObject(document, "command", command);
    cJSON_AddBoolToObject(document, "quick", o->quick);
    if (o->rounds)
        cJSON_AddNumberToObject(document, "rounds", (double)o->rounds);
    if (gmtime_r(&now, &utc) && strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc) > 0)
        cJSON_AddStringToObject(document, "time", text);
    cJSON_AddNumberToObject(document, "seed", (double)o->seed);
    environment_add(document);
    if (device)
        add_device(document, o, device);
    *list = (record_list){document, cJSON_AddArrayToObject(document, "records")};
}

cJSON *record_add(record_list *list) {
    cJSON *record = cJSON_CreateObject();
    cJSON_AddItemToArray(list->records, record);
    return record;
}

static void add_text(cJSON *record, const char *name, const char *text) {
    if (text)
        cJSON_AddStringToObject(record, name, text);
}

cJSON *record_named(record_list *list, const options *o, const char *command, const char *kernel) {
    cJSON *record = record_add(list);
    add_text(record, "case", case_name(o));
    add_text(record, "command", case_command(o, command));
    add_text(record, "kernel", kernel);
    return record;
}

/* --- the shape: fields of the table under their names --- */

/* The attention factor that the rule gives, and its defaults. */
static void fill_rule(rope_desc *d) {
    rope_desc exact = *d;
    double inv_freq[ROPE_MAX_ROTARY_DIM / 2];
    exact.angle_mode = ROPE_ANGLE_EXACT;
    exact.table_dtype = exact.table_width = exact.out_of_range = 0;
    if (d->rope_type != ROPE_TYPE_LONGROPE) /* which has two factors, by sequence */
        (void)rope_frequencies(&exact, 0, inv_freq, ROPE_MAX_ROTARY_DIM / 2, &d->attention_factor);
    if (d->rope_type == ROPE_TYPE_YARN) {
        d->beta_fast = d->beta_fast != 0 ? d->beta_fast : 32;
        d->beta_slow = d->beta_slow != 0 ? d->beta_slow : 1;
        d->truncate = d->truncate ? d->truncate : ROPE_TRUNCATE_ON;
    }
    if (d->rope_type == ROPE_TYPE_PROPORTIONAL && d->partial_rotary_factor == 0)
        d->partial_rotary_factor = 1;
    if (d->rope_type == ROPE_TYPE_DYNAMIC && d->sequence_length == 0)
        d->sequence_length = d->max_position_embeddings;
    if (d->rope_type == ROPE_TYPE_LONGROPE && d->longrope_select == 0)
        d->longrope_select = ROPE_LONGROPE_PER_SEQUENCE;
}

static int32_t first_where_none(int32_t choice) {
    return choice ? choice : 1;
}

/* Options with every default filled in. */
static options effective(const options *o) {
    options full = *o;
    rope_desc *d = &full.desc;
    fill_rule(d);
    d->pairing_in = first_where_none(d->pairing_in);
    d->pairing_out = d->pairing_out ? d->pairing_out : d->pairing_in;
    d->direction = first_where_none(d->direction);
    d->arithmetic = first_where_none(d->arithmetic);
    d->angle_mode = first_where_none(d->angle_mode);
    d->launch = first_where_none(d->launch);
    d->rope_type = first_where_none(d->rope_type);
    d->axis_layout = first_where_none(d->axis_layout);
    d->axis_frequency = first_where_none(d->axis_frequency);
    d->rotary_dim = d->rotary_dim ? d->rotary_dim : d->head_dim;
    d->k_rotary_offset = d->k_head_dim ? d->k_rotary_offset : d->rotary_offset;
    d->k_head_dim = d->k_head_dim ? d->k_head_dim : d->head_dim;
    d->axes = first_where_none(d->axes);
    d->rope_theta = d->rope_theta > 0 ? d->rope_theta : 10000;
    full.position_ids = first_where_none(o->position_ids);
    full.cache = first_where_none(o->cache);
    if (o->append)
        full.v_heads = shape_heads(o, CHECK_V);
    if (full.appends.cache)
        full.appends.page_size = shape_page_size(o);
    full.attends.rotation = shape_rotation(o);
    full.attends.mask = first_where_none(o->attends.mask);
    full.keys = shape_keys(o);
    return full;
}

static void add_value(cJSON *object, const option_field *field, cJSON *value) {
    char name[48];
    snprintf(name, sizeof name, "%s", field->name);
    for (char *c = name; (c = strchr(c, '-'));)
        *c = '_';
    cJSON_AddItemToObject(object, name, value);
}

static bool is_listed(const char *names, const option_field *field) {
    char word[48];
    snprintf(word, sizeof word, " %s ", field->name);
    return strstr(names, word) != NULL;
}

/* The fields of these names. */
static void add_listed(cJSON *object, const options *full, const char *names) {
    for (const option_field *f = option_fields; f < option_fields + option_field_count; f++)
        if (is_listed(names, f))
            add_value(object, f, options_value(full, f));
}

/* The fields of some groups, and of a decode's cache, that are not 0. */
static void add_group(cJSON *object, const options *full, option_group one, option_group other) {
    for (const option_field *f = option_fields; f < option_fields + option_field_count; f++) {
        const bool is_wanted =
            f->group == one || f->group == other || (full->decode && option_is_store(f));
        cJSON *value = is_wanted ? options_value(full, f) : NULL;
        const bool is_zero = value && cJSON_IsRaw(value) && strcmp(value->valuestring, "0") == 0;
        if (value && !is_zero && !is_listed(" rope-type rope-theta ", f))
            add_value(object, f, value);
        else
            cJSON_Delete(value);
    }
}

/* What rotates, by which rule and in which pairs. */
static void add_rotation(cJSON *object, const options *full, const char *more) {
    add_listed(object, full,
               " q-heads k-heads head-dim rotary-dim rotary-offset k-head-dim "
               "k-rotary-offset axes rope-theta pairing-in pairing-out direction "
               "rope-type ");
    add_listed(object, full, more);
    if (full->desc.axes > 1)
        add_listed(object, full, " axis-layout axis-frequency sections ");
    add_group(cJSON_AddObjectToObject(object, "rule"), full, OPTION_FREQUENCIES,
              OPTION_FREQUENCIES);
}

void record_layer(cJSON *record, const options *o) {
    const options full = effective(o);
    add_rotation(record, &full, "");
}

void record_shape(cJSON *record, const options *o) {
    const options full = effective(o);
    const char *operation = o->append ? "append" : o->attention ? "attention" : "rope";
    cJSON *shape = cJSON_AddObjectToObject(record, "shape");
    add_rotation(shape, &full,
                 " tokens batch position-offset max-position dtype layout arithmetic "
                 "position-ids angle-mode launch ");
    cJSON_AddBoolToObject(shape, "dtype_is_assumed", o->dtype_is_assumed);
    cJSON_AddBoolToObject(shape, "xpos", o->desc.xpos_scale_base > 0);
    cJSON_AddBoolToObject(shape, "in_place", o->in_place);
    cJSON_AddStringToObject(shape, "operation", operation);
    if (!o->append && !o->attention)
        return;
    cJSON *own = cJSON_AddObjectToObject(shape, operation);
    add_group(own, &full, OPTION_CACHE, o->append ? OPTION_APPEND : OPTION_ATTENTION);
    if (o->attention && o->cu_seqlens.count)
        add_listed(shape, &full, " cu-seqlens ");
}

/* --- cases --- */

cJSON *record_case(record_list *list, const options *o) {
    cJSON *record = record_named(list, o, "bench", NULL);
    cJSON_AddStringToObject(record, "suite", o->suite_of ? o->suite_of : "");
    cJSON_AddStringToObject(record, "label", o->label ? o->label : "");
    cJSON_AddStringToObject(record, "cache", o->cache == CACHE_COLD ? "cold" : "warm");
    record_shape(record, o);
    return record;
}

static void add_summary(cJSON *object, const char *name, const summary *s) {
    cJSON *member = cJSON_AddObjectToObject(object, name);
    cJSON_AddNumberToObject(member, "median", s->median);
    cJSON_AddNumberToObject(member, "low", s->low);
    cJSON_AddNumberToObject(member, "high", s->high);
}

static cJSON *add_timing(cJSON *record, const char *name, const summary *seconds,
                         const summary *ratio, double bytes) {
    cJSON *timing = cJSON_AddObjectToObject(record, name);
    add_summary(timing, "seconds", seconds);
    cJSON_AddNumberToObject(timing, "gb_per_second", 1e-9 * bytes / seconds->median);
    if (ratio)
        add_summary(timing, "ratio", ratio);
    return timing;
}

static void add_checked(cJSON *record, const check_result *r) {
    cJSON *checked = cJSON_AddObjectToObject(record, "checked");
    cJSON_AddNumberToObject(checked, "elements", (double)r->elements);
    cJSON_AddNumberToObject(checked, "max_error", r->max_error);
    cJSON_AddNumberToObject(checked, "worst", r->worst);
}

void record_measurement(record_list *list, const options *o, const workload *w,
                        const measurement *m, const check_result *checked) {
    const double bytes = 2.0 * (double)w->floor_bytes;
    cJSON *record = record_case(list, o);
    cJSON_AddStringToObject(record, "implementation", "ropekit");
    cJSON_AddStringToObject(record, "kernel", w->kernel);
    cJSON_AddNumberToObject(record, "bytes", bytes);
    if (w->flops > 0)
        cJSON_AddNumberToObject(record, "flops", w->flops);
    cJSON_AddNumberToObject(record, "table_bytes", (double)measure_table_bytes(w, o));
    cJSON_AddNumberToObject(record, "sets", (double)w->set_count);
    cJSON_AddNumberToObject(record, "rounds", (double)m->rounds);
    cJSON_AddNumberToObject(record, "iterations", (double)m->iterations);
    add_timing(record, "replay", &m->kernel, &m->kernel_ratio, bytes);
    cJSON *eager = add_timing(record, "eager", &m->apply, &m->apply_ratio, bytes);
    cJSON_AddNumberToObject(eager, "host_seconds", m->host.median);
    cJSON *floor = add_timing(record, "floor", &m->floor, NULL, bytes);
    cJSON_AddStringToObject(floor, "kernel", m->floor_kernel);
    add_summary(record, "self_ratio", &m->self_ratio);
    add_checked(record, checked);
}

void record_check(cJSON *record, const check_result *r) {
    cJSON_AddNumberToObject(record, "elements", (double)r->elements);
    cJSON_AddNumberToObject(record, "refused", (double)r->refused);
    cJSON_AddNumberToObject(record, "max_error", r->max_error);
    cJSON_AddNumberToObject(record, "worst", r->worst);
    cJSON_AddNumberToObject(record, "bound", r->bound);
    cJSON_AddStringToObject(record, "tensor", check_tensors[r->at.tensor]);
    cJSON_AddNumberToObject(record, "batch", (double)r->at.batch);
    cJSON_AddNumberToObject(record, "token", (double)r->at.token);
    cJSON_AddNumberToObject(record, "head", (double)r->at.head);
    cJSON_AddNumberToObject(record, "dim", (double)r->at.dim);
    cJSON_AddNumberToObject(record, "got", r->got);
    cJSON_AddNumberToObject(record, "value", r->value);
    cJSON_AddBoolToObject(record, "passed", r->refused == 0);
}
