#define _GNU_SOURCE
#include "bench/measure/record.h"

#include "bench/append/workload.h"
#include "bench/attention/shape.h"
#include "bench/measure/environment.h"
#include "bench/output/message.h"
#include "bench/support/dtype.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Longest name of a file. */
#define PATH_BYTES 4096

static void add_device(cJSON *document, const options *o, const rope_device_info *info) {
    cJSON *device = cJSON_AddObjectToObject(document, "device");
    cJSON_AddStringToObject(device, "backend", info->backend);
    cJSON_AddNumberToObject(device, "index", o->desc.device);
    cJSON_AddStringToObject(device, "name", info->name);
    cJSON_AddStringToObject(device, "features", info->features);
    cJSON_AddNumberToObject(device, "memory_bytes", (double)info->memory_bytes);
    cJSON_AddNumberToObject(device, "cache_bytes", (double)info->cache_bytes);
    cJSON_AddNumberToObject(device, "compute_units", info->compute_units);
    environment_add_clocks(device, "begin");
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
    if (gmtime_r(&now, &utc) && strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc) > 0)
        cJSON_AddStringToObject(document, "time", text);
    cJSON_AddNumberToObject(document, "seed", (double)o->seed);
    environment_add(document);
    if (device)
        add_device(document, o, device);
    *list = (record_list){document, cJSON_AddArrayToObject(document, "records")};
}

static void set_member(cJSON *object, const char *name, cJSON *value) {
    if (!cJSON_ReplaceItemInObject(object, name, value))
        cJSON_AddItemToObject(object, name, value);
}

void record_rounds(record_list *list, int64_t rounds) {
    set_member(list->document, "rounds", cJSON_CreateNumber((double)rounds));
}

void record_suite(record_list *list, const char *suite, bool complete) {
    cJSON *suites = cJSON_GetObjectItem(list->document, "suites");
    if (!suites)
        suites = cJSON_AddObjectToObject(list->document, "suites");
    set_member(suites, suite, cJSON_CreateBool(complete));
    for (const cJSON *s = suites->child; s; s = s->next)
        complete = complete && cJSON_IsTrue(s);
    set_member(list->document, "complete", cJSON_CreateBool(complete));
}

cJSON *record_add(record_list *list, const char *case_name, const char *command,
                  const char *kernel) {
    cJSON *record = cJSON_CreateObject();
    cJSON_AddItemToArray(list->records, record);
    if (case_name)
        cJSON_AddStringToObject(record, "case", case_name);
    if (command)
        cJSON_AddStringToObject(record, "command", command);
    if (kernel)
        cJSON_AddStringToObject(record, "kernel", kernel);
    return record;
}

static void fill_rule(rope_desc *d) {
    rope_desc exact = *d;
    double inv_freq[ROPE_MAX_ROTARY_DIM / 2];
    exact.angle_mode = ROPE_ANGLE_EXACT;
    exact.table_dtype = exact.table_width = exact.out_of_range = 0;
    if (d->rope_type != ROPE_TYPE_LONGROPE) /* which has two factors, by sequence */
        (void)rope_frequencies(&exact, 0, inv_freq, ROPE_MAX_ROTARY_DIM / 2, &d->attention_factor);
    if (d->rope_type == ROPE_TYPE_YARN && d->beta_fast == 0)
        d->beta_fast = 32;
    if (d->rope_type == ROPE_TYPE_YARN && d->beta_slow == 0)
        d->beta_slow = 1;
    if (d->rope_type == ROPE_TYPE_PROPORTIONAL && d->partial_rotary_factor == 0)
        d->partial_rotary_factor = 1;
    if (d->rope_type == ROPE_TYPE_DYNAMIC && d->sequence_length == 0)
        d->sequence_length = d->max_position_embeddings;
    if (d->rope_type == ROPE_TYPE_YARN && d->truncate == 0)
        d->truncate = ROPE_TRUNCATE_ON;
    if (d->rope_type == ROPE_TYPE_LONGROPE && d->longrope_select == 0)
        d->longrope_select = ROPE_LONGROPE_PER_SEQUENCE;
}

/* A member under an option's name. */
static char *member_name(const option_field *field, char name[48]) {
    snprintf(name, 48, "%s", field->name);
    for (char *c = name; (c = strchr(c, '-'));)
        *c = '_';
    return name;
}

static void add_choice(cJSON *object, const options *o, const option_field *field) {
    char choice[OPTIONS_CHOICE_BYTES], name[48];
    options_choice(o, field, choice);
    cJSON_AddStringToObject(object, member_name(field, name), choice);
}

/* What the rule reads beside its base; the rest is 0 in every descriptor and stays out. */
static void add_rule(cJSON *rule, const options *o, const option_field *field) {
    const void *member = (const char *)o + field->offset;
    double value = 0;
    char name[48];
    if (field->kind == OPTION_FACTORS) {
        const double *list = *(const double *const *)member;
        if (list)
            cJSON_AddItemToObject(rule, member_name(field, name),
                                  cJSON_CreateDoubleArray(list, o->desc.factor_count));
        return;
    }
    if (field->kind == OPTION_CHOICE && *(const int32_t *)member != 0)
        add_choice(rule, o, field);
    if (field->kind == OPTION_DOUBLE)
        value = *(const double *)member;
    if (field->kind == OPTION_INT64)
        value = (double)*(const int64_t *)member;
    if (value != 0)
        cJSON_AddNumberToObject(rule, member_name(field, name), value);
}

/* Some choices, the rule, and how pairs are dealt to several axes. */
static void add_fields(cJSON *shape, const options *o, const char *choices) {
    cJSON *rule = cJSON_AddObjectToObject(shape, "rule");
    for (int32_t i = 0; i < option_field_count; i++) {
        const option_field *field = &option_fields[i];
        char word[48];
        snprintf(word, sizeof word, " %s ", field->name);
        if (strstr(choices, word) || (o->desc.axes > 1 && strncmp(field->name, "axis-", 5) == 0))
            add_choice(shape, o, field);
        else if (strcmp(field->group, OPTION_FREQUENCIES) == 0 &&
                 field->offset != offsetof(options, desc.rope_theta))
            add_rule(rule, o, field);
    }
    if (o->desc.axes > 1)
        cJSON_AddItemToObject(shape, "sections",
                              cJSON_CreateIntArray(o->desc.sections, o->desc.axes));
}

/* With the effective values of what append or attention has defaults for. */
static options filled(const options *o) {
    options full = *o;
    if (o->append)
        full.v_heads = append_heads(o, APPEND_V);
    if (full.appends.cache)
        full.appends.page_size = o->append ? append_page_size(o) : attention_page_size(o);
    full.attends.rotation = attention_rotation(o);
    full.keys = attention_keys(o);
    if (full.attends.mask == 0)
        full.attends.mask = ROPE_MASK_CAUSAL;
    return full;
}

/* What the operation does beside the rotation, by the names of options; what is 0 stays out. */
static void add_operation(cJSON *shape, const options *o) {
    const options full = filled(o);
    const char *name_of = o->append ? "append" : "attention";
    const char *own = o->append ? OPTION_APPEND : OPTION_ATTENTION;
    cJSON *operation = cJSON_AddObjectToObject(shape, name_of);
    for (int32_t i = 0; i < option_field_count; i++) {
        const option_field *field = &option_fields[i];
        const void *member = (const char *)&full + field->offset;
        char name[48];
        if (strcmp(field->group, own) != 0 && strcmp(field->group, OPTION_CACHE) != 0)
            continue;
        const double number = field->kind == OPTION_DOUBLE  ? *(const double *)member
                              : field->kind == OPTION_INT64 ? (double)*(const int64_t *)member
                              : field->kind == OPTION_FLAG  ? *(const bool *)member
                                                            : *(const int32_t *)member;
        if (number == 0)
            continue;
        if (field->kind == OPTION_CHOICE)
            add_choice(operation, &full, field);
        else if (field->kind == OPTION_FLAG)
            cJSON_AddTrueToObject(operation, member_name(field, name));
        else if (field->kind == OPTION_DTYPE)
            cJSON_AddStringToObject(operation, member_name(field, name),
                                    dtype_name(*(const int32_t *)member));
        else
            cJSON_AddNumberToObject(operation, member_name(field, name), number);
    }
}

static void add_boundaries(cJSON *shape, const index_list *list) {
    cJSON *array = cJSON_AddArrayToObject(shape, "cu_seqlens");
    for (int64_t i = 0; i < list->count; i++)
        cJSON_AddItemToArray(array, cJSON_CreateNumber((double)list->values[i]));
}

/* Options with every default of their descriptor. */
static options described(const options *o) {
    options full = *o;
    if (full.desc.pairing_out == 0)
        full.desc.pairing_out = full.desc.pairing_in;
    fill_rule(&full.desc);
    return full;
}

static void add_heads(cJSON *object, const options *o) {
    const rope_desc *d = &o->desc;
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {{"q_heads", o->q_heads},
                   {"k_heads", o->k_heads},
                   {"head_dim", d->head_dim},
                   {"rotary_dim", d->rotary_dim ? d->rotary_dim : d->head_dim},
                   {"rotary_offset", d->rotary_offset},
                   {"k_head_dim", d->k_head_dim ? d->k_head_dim : d->head_dim},
                   {"k_rotary_offset", d->k_head_dim ? d->k_rotary_offset : d->rotary_offset},
                   {"axes", d->axes ? d->axes : 1}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        cJSON_AddNumberToObject(object, numbers[i].name, (double)numbers[i].value);
    cJSON_AddNumberToObject(object, "rope_theta", d->rope_theta > 0 ? d->rope_theta : 10000);
}

void record_layer(cJSON *record, const options *o) {
    const options full = described(o);
    add_heads(record, &full);
    add_fields(record, &full, " pairing-in pairing-out direction rope-type ");
}

/* What another program needs to run the case, with every default filled in. */
void record_shape(cJSON *record, const options *o) {
    const options full = described(o);
    const rope_desc *d = &full.desc;
    cJSON *shape = cJSON_AddObjectToObject(record, "shape");
    cJSON_AddNumberToObject(shape, "batch", (double)o->batch);
    cJSON_AddNumberToObject(shape, "tokens", (double)o->tokens);
    add_heads(shape, &full);
    cJSON_AddNumberToObject(shape, "position_offset", (double)o->position_offset);
    cJSON_AddNumberToObject(shape, "max_position", (double)o->max_position);
    cJSON_AddStringToObject(shape, "dtype", dtype_name(d->dtype));
    cJSON_AddBoolToObject(shape, "dtype_is_assumed", o->dtype_is_assumed);
    cJSON_AddBoolToObject(shape, "xpos", d->xpos_scale_base > 0);
    cJSON_AddBoolToObject(shape, "in_place", o->in_place);
    add_fields(shape, &full,
               " layout arithmetic pairing-in pairing-out direction position-ids angle-mode "
               "rope-type launch ");
    cJSON_AddStringToObject(shape, "operation",
                            o->append      ? "append"
                            : o->attention ? "attention"
                                           : "rope");
    if (o->append || o->attention)
        add_operation(shape, o);
    if (o->attention && o->cu_seqlens.count)
        add_boundaries(shape, &o->cu_seqlens);
}

/* Options that were given beside a suite's case, whose own replace them. */
static const char *given_beside(const bench_case *c) {
    char *own = NULL;
    if (!c->suite)
        return "";
    if (asprintf(&own, "--suite= %s", c->settings) < 0)
        return NULL;
    const char *given = options_line(&c->o, own);
    free(own);
    return given;
}

cJSON *record_case(record_list *list, const bench_case *c) {
    const char *command = options_command(&c->o, "bench", given_beside(c), c->settings);
    cJSON *record = record_add(list, c->settings, command, NULL);
    cJSON_AddStringToObject(record, "suite", c->suite ? c->suite : "");
    cJSON_AddStringToObject(record, "label", c->label ? c->label : "");
    cJSON_AddStringToObject(record, "cache", c->o.cache == CACHE_COLD ? "cold" : "warm");
    record_shape(record, &c->o);
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

static cJSON *add_case_figures(record_list *list, const bench_case *c, const char *implementation,
                               const char *kernel, const workload *w, const measurement *m) {
    cJSON *record = record_case(list, c);
    cJSON_AddStringToObject(record, "implementation", implementation);
    cJSON_AddStringToObject(record, "kernel", kernel);
    cJSON_AddNumberToObject(record, "bytes", 2.0 * (double)w->floor_bytes);
    if (w->flops > 0)
        cJSON_AddNumberToObject(record, "flops", w->flops);
    cJSON_AddNumberToObject(record, "table_bytes", (double)measure_table_bytes(w, &c->o));
    cJSON_AddNumberToObject(record, "sets", (double)w->set_count);
    cJSON_AddNumberToObject(record, "rounds", (double)m->rounds);
    cJSON_AddNumberToObject(record, "iterations", (double)m->iterations);
    return record;
}

static void add_floor(cJSON *record, const measurement *m, double bytes) {
    cJSON *floor = add_timing(record, "floor", &m->floor, NULL, bytes);
    cJSON_AddStringToObject(floor, "kernel", m->floor_kernel);
    cJSON_AddNumberToObject(floor, "host_seconds", m->launch_seconds);
    add_summary(record, "self_ratio", &m->self_ratio);
}

/* Kernels alone and calls of an implementation, beside the floor. */
typedef struct timed {
    summary kernel, kernel_ratio, apply, apply_ratio;
    double host;
} timed;

static cJSON *add_implementation(record_list *list, const bench_case *c, const char *name,
                                 const char *kernel, const workload *w, const measurement *m,
                                 const timed *t) {
    const double bytes = 2.0 * (double)w->floor_bytes;
    cJSON *record = add_case_figures(list, c, name, kernel, w, m);
    add_timing(record, "replay", &t->kernel, &t->kernel_ratio, bytes);
    cJSON *eager = add_timing(record, "eager", &t->apply, &t->apply_ratio, bytes);
    cJSON_AddNumberToObject(eager, "host_seconds", t->host);
    add_floor(record, m, bytes);
    return record;
}

/* The steps that do the same are an implementation of their own. */
static void add_steps(record_list *list, const bench_case *c, const workload *w,
                      const measurement *m, const check_result *checked) {
    char kernels[WORKLOAD_KERNELS];
    workload_kernels(w, w->parts, w->timed_count, false, kernels);
    const timed steps = {m->steps, m->steps_ratio, m->steps_apply, m->steps_apply_ratio,
                         m->steps_host};
    add_checked(add_implementation(list, c, "ropekit, step after step", kernels, w, m, &steps),
                checked);
}

/* Attention without the rotation, or the rotation of as many bytes as append moves. */
static void add_beside(record_list *list, const bench_case *c, const workload *w,
                       const measurement *m, const check_result *checked) {
    const check_result unchecked = {0};
    char kernels[WORKLOAD_KERNELS];
    const char *name =
        w->attention ? "ropekit, rotated inputs" : "ropekit, rotation of as many bytes";
    const workload_call *call = w->attention ? &w->calls[w->timed_count - 1] : &w->rotation;
    snprintf(kernels, sizeof kernels, "%s", workload_kernel(call));
    if (w->parts > 1)
        workload_kernels(w, w->parts, w->timed_count, true, kernels);
    const timed beside = {m->beside, m->beside_ratio, m->beside_apply, m->beside_apply_ratio,
                          m->beside_host};
    add_checked(add_implementation(list, c, name, kernels, w, m, &beside),
                w->attention ? checked : &unchecked);
}

void record_measurement(record_list *list, const bench_case *c, const char *kernel,
                        const workload *w, const measurement *m, const check_result *checked) {
    const timed call = {m->kernel, m->kernel_ratio, m->apply, m->apply_ratio, m->host_seconds};
    cJSON *record = add_implementation(list, c, "ropekit", kernel, w, m, &call);
    if (m->multiple.median > 0)
        add_summary(record, w->attention ? "tax" : "rotations", &m->multiple);
    if (m->speedup.median > 0)
        add_summary(record, "speedup", &m->speedup);
    add_checked(record, checked);
    if (m->gain.median > 0)
        add_steps(list, c, w, m, checked);
    if (m->multiple.median > 0)
        add_beside(list, c, w, m, checked);
}

void record_check(cJSON *record, const check_result *r) {
    cJSON_AddNumberToObject(record, "elements", (double)r->elements);
    cJSON_AddNumberToObject(record, "refused", (double)r->refused);
    cJSON_AddNumberToObject(record, "max_error", r->max_error);
    cJSON_AddNumberToObject(record, "worst", r->worst);
    cJSON_AddNumberToObject(record, "bound", r->bound);
    cJSON_AddStringToObject(record, "tensor", check_tensors[r->tensor]);
    cJSON_AddNumberToObject(record, "batch", (double)r->batch);
    cJSON_AddNumberToObject(record, "token", (double)r->token);
    cJSON_AddNumberToObject(record, "head", (double)r->head);
    cJSON_AddNumberToObject(record, "dim", (double)r->dim);
    cJSON_AddNumberToObject(record, "got", r->got);
    cJSON_AddNumberToObject(record, "value", r->value);
    cJSON_AddBoolToObject(record, "passed", r->refused == 0);
}

/* Writes a document, one record a line. */
static bool write_document(const record_list *list, FILE *file) {
    cJSON *records = cJSON_DetachItemViaPointer(list->document, list->records);
    char *head = cJSON_Print(list->document);
    bool written = head != NULL;
    if (head)
        fprintf(file, "%.*s,\n\t\"records\":\t[", (int)strlen(head) - 2, head);
    for (const cJSON *r = records->child; r && written; r = r->next) {
        char *line = cJSON_PrintUnformatted(r);
        written = line && fprintf(file, "\n%s%s", line, r->next ? "," : "") > 0;
        cJSON_free(line);
    }
    cJSON_free(head);
    cJSON_AddItemToObject(list->document, "records", records);
    return fputs("\n]}\n", file) >= 0 && written;
}

/* Whether a path is written as it is: a device, a pipe, a socket, or a name of an open file. */
static bool is_stream(const char *path) {
    struct stat there;
    bool opened = strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0;
    return (opened ? lstat : stat)(path, &there) == 0 && !S_ISREG(there.st_mode);
}

/* The file that is written: a stream itself, else one that replaces --output when it is whole. */
static bool name_scratch(const options *o, char scratch[PATH_BYTES]) {
    bool stream = is_stream(o->output);
    snprintf(scratch, PATH_BYTES, stream ? "%s" : "%s.part", o->output);
    return stream;
}

static bool refuse_output(const options *o, int error) {
    message("--output is \"%s\": %s", o->output, strerror(error));
    return false;
}

static bool is_folder(const char *path) {
    struct stat there;
    return stat(path, &there) == 0 && S_ISDIR(there.st_mode);
}

/* 0 or the error with which a file could not be opened for writing; leaves it as it is. */
static int try_writing(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (file < 0 && errno == EEXIST)
        return is_folder(path) ? EISDIR : access(path, W_OK) == 0 ? 0 : errno;
    if (file < 0)
        return errno;
    close(file);
    return unlink(path) == 0 ? 0 : errno;
}

bool record_check_output(const options *o) {
    char scratch[PATH_BYTES];
    if (!o->output)
        return true;
    name_scratch(o, scratch);
    int error = !*o->output ? ENOENT : is_folder(o->output) ? EISDIR : try_writing(scratch);
    return !error || refuse_output(o, error);
}

/* Replaces the file at once, so that an interrupted tool leaves a whole one. */
static bool write_output(const record_list *list, const options *o, const char *scratch,
                         bool stream) {
    FILE *file = fopen(scratch, "w");
    bool written = file && write_document(list, file) && fflush(file) == 0 && !ferror(file);
    int error = errno;
    if (file && fclose(file) != 0 && written) {
        written = false;
        error = errno;
    }
    if (written && !stream && rename(scratch, o->output) != 0) {
        written = false;
        error = errno;
    }
    if (!written && file && !stream)
        unlink(scratch);
    return written || refuse_output(o, error);
}

bool record_save(const record_list *list, const options *o) {
    char scratch[PATH_BYTES];
    return !o->output || name_scratch(o, scratch) || write_output(list, o, scratch, false);
}

bool record_end(record_list *list, const options *o) {
    cJSON *device = cJSON_GetObjectItem(list->document, "device");
    if (device)
        environment_add_clocks(device, "end");
    char scratch[PATH_BYTES];
    bool written = !o->output || write_output(list, o, scratch, name_scratch(o, scratch));
    written = written && (!o->json || (write_document(list, stdout) && text_flush(stdout)));
    cJSON_Delete(list->document);
    return written;
}
