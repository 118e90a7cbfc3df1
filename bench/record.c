#include "bench/record.h"

#include "bench/message.h"

#include <errno.h>
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
}

/* Copies the value of the first line of /proc/cpuinfo that starts with key. */
static bool cpu_field(const char *key, char *value, size_t size) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0)
            continue;
        snprintf(value, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        found = true;
    }
    if (file)
        fclose(file);
    return found;
}

static void add_host(cJSON *document) {
    char value[128];
    cJSON *host = cJSON_AddObjectToObject(document, "host");
    double mhz = 0;
    if (cpu_field("model name", value, sizeof value))
        cJSON_AddStringToObject(host, "cpu", value);
    if (cpu_field("cpu MHz", value, sizeof value) && sscanf(value, "%lf", &mhz) == 1)
        cJSON_AddNumberToObject(host, "mhz", mhz);
}

void record_begin(record_list *list, const char *command, const options *o,
                  const rope_device_info *device) {
    char text[32];
    time_t now = time(NULL);
    struct tm utc;
    cJSON *document = cJSON_CreateObject();
    cJSON_AddStringToObject(document, "schema", "ropekit-results");
    cJSON_AddNumberToObject(document, "version", 1);
    cJSON_AddStringToObject(document, "command", command);
    cJSON_AddStringToObject(document, "library", rope_version());
    cJSON_AddStringToObject(document, "compiler", __VERSION__);
    if (gmtime_r(&now, &utc) && strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc) > 0)
        cJSON_AddStringToObject(document, "time", text);
    cJSON_AddNumberToObject(document, "seed", (double)o->seed);
    cJSON_AddNumberToObject(document, "threads", target_threads());
    if (device)
        add_device(document, o, device);
    *list = (record_list){document, cJSON_AddArrayToObject(document, "records")};
}

cJSON *record_add(record_list *list, const char *case_name, const char *kernel) {
    cJSON *record = cJSON_CreateObject();
    cJSON_AddItemToArray(list->records, record);
    if (case_name)
        cJSON_AddStringToObject(record, "case", case_name);
    if (kernel)
        cJSON_AddStringToObject(record, "kernel", kernel);
    return record;
}

static void add_summary(cJSON *object, const char *name, const summary *s) {
    cJSON *member = cJSON_AddObjectToObject(object, name);
    cJSON_AddNumberToObject(member, "median", s->median);
    cJSON_AddNumberToObject(member, "low", s->low);
    cJSON_AddNumberToObject(member, "high", s->high);
}

static cJSON *add_measure(record_list *list, const char *case_name, const char *kernel,
                          const options *o, const workload *w, const measurement *m,
                          const char *measure, const summary *seconds, const summary *ratio) {
    double bytes = 2.0 * (double)w->floor_bytes;
    cJSON *record = record_add(list, case_name, kernel);
    cJSON_AddStringToObject(record, "measure", measure);
    cJSON_AddStringToObject(record, "cache", o->cache == CACHE_COLD ? "cold" : "warm");
    cJSON_AddNumberToObject(record, "bytes", bytes);
    cJSON_AddNumberToObject(record, "rounds", (double)m->rounds);
    cJSON_AddNumberToObject(record, "iterations", (double)m->iterations);
    add_summary(record, "seconds", seconds);
    cJSON_AddNumberToObject(record, "gb_per_second", 1e-9 * bytes / seconds->median);
    cJSON *floor = cJSON_AddObjectToObject(record, "floor");
    cJSON_AddStringToObject(floor, "kernel", m->floor_kernel);
    add_summary(floor, "seconds", &m->floor);
    cJSON_AddNumberToObject(floor, "gb_per_second", 1e-9 * bytes / m->floor.median);
    add_summary(record, "ratio", ratio);
    add_summary(record, "self_ratio", &m->self_ratio);
    return record;
}

void record_measurement(record_list *list, const char *case_name, const char *kernel,
                        const options *o, const workload *w, const measurement *m) {
    add_measure(list, case_name, kernel, o, w, m, "kernel", &m->kernel, &m->kernel_ratio);
    cJSON *apply =
        add_measure(list, case_name, kernel, o, w, m, "apply", &m->apply, &m->apply_ratio);
    cJSON_AddNumberToObject(apply, "host_seconds", m->host_seconds);
}

void record_check(record_list *list, const char *case_name, const char *kernel,
                  const check_result *r) {
    cJSON *record = record_add(list, case_name, kernel);
    cJSON_AddNumberToObject(record, "elements", (double)r->elements);
    cJSON_AddNumberToObject(record, "refused", (double)r->refused);
    cJSON_AddNumberToObject(record, "max_error", r->max_error);
    cJSON_AddNumberToObject(record, "worst", r->worst);
    cJSON_AddNumberToObject(record, "bound", r->bound);
    cJSON_AddStringToObject(record, "tensor", r->tensor ? "k" : "q");
    cJSON_AddNumberToObject(record, "batch", (double)r->batch);
    cJSON_AddNumberToObject(record, "token", (double)r->token);
    cJSON_AddNumberToObject(record, "head", (double)r->head);
    cJSON_AddNumberToObject(record, "dim", (double)r->dim);
    cJSON_AddNumberToObject(record, "got", r->got);
    cJSON_AddNumberToObject(record, "value", r->value);
    cJSON_AddBoolToObject(record, "passed", r->refused == 0);
}

static bool write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    bool written = file && fprintf(file, "%s\n", text) > 0;
    written = file && fclose(file) == 0 && written;
    if (!written)
        message("--output is \"%s\": %s", path, strerror(errno));
    return written;
}

bool record_end(record_list *list, const options *o) {
    bool written = true;
    if (o->json || o->output) {
        add_host(list->document);
        char *text = cJSON_Print(list->document);
        written = text != NULL;
        if (!text)
            message("no memory for the results");
        if (text && o->json)
            printf("%s\n", text);
        if (text && o->output)
            written = write_file(o->output, text);
        cJSON_free(text);
    }
    cJSON_Delete(list->document);
    return written;
}
