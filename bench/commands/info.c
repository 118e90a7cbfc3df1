#include "bench/commands/commands.h"
#include "bench/commands/info_config.h"
#include "bench/commands/variables.h"
#include "bench/measure/record.h"
#include "bench/output/message.h"
#include "bench/output/table.h"
#include "bench/support/dtype.h"

#include <string.h>

/* Whether --backend, a comma list, names a backend; without it, or with auto, all are wanted. */
static bool is_wanted(const options *o, const char *backend) {
    const char *name = o->desc.backend;
    if (!name || strcmp(name, "auto") == 0)
        return true;
    for (size_t length; *name; name += length + (name[length] == ',')) {
        length = strcspn(name, ",");
        if (strlen(backend) == length && memcmp(backend, name, length) == 0)
            return true;
    }
    return false;
}

/* False after a message when --backend names nothing that is known. */
static bool check_wanted(const options *o) {
    rope_device *device = NULL;
    for (int32_t i = 0; i < rope_backend_count(); i++) {
        rope_backend_info info = {.struct_size = sizeof info};
        if (rope_backend_get(i, &info) == ROPE_OK && is_wanted(o, info.name))
            return true;
    }
    bool opened = succeeded(rope_device_open(o->desc.backend, 0, &device), "info");
    rope_device_close(device);
    return opened;
}

static void print_backends(const options *o, record_list *list, FILE *file) {
    table t;
    table_begin(&t, "backend|devices|origin|status");
    for (int32_t i = 0; i < rope_backend_count(); i++) {
        rope_backend_info info = {.struct_size = sizeof info};
        if (rope_backend_get(i, &info) != ROPE_OK || !is_wanted(o, info.name))
            continue;
        table_cell(&t, "%s", info.name);
        table_cell(&t, "%d", info.device_count);
        table_cell(&t, "%s", info.origin);
        table_cell(&t, "%s", info.status == ROPE_OK ? "ready" : info.reason);
        cJSON *record = record_add(list);
        cJSON_AddStringToObject(record, "backend", info.name);
        cJSON_AddStringToObject(record, "status", rope_status_string(info.status));
        cJSON_AddStringToObject(record, "reason", info.reason);
        cJSON_AddStringToObject(record, "origin", info.origin);
        cJSON_AddNumberToObject(record, "devices", info.device_count);
    }
    table_print(&t, file);
    table_end(&t);
}

/* Every candidate of the options' own descriptor and its answer. */
static void print_report(const options *o, const char *backend, int32_t device, cJSON *record,
                         FILE *file) {
    rope_desc desc = o->desc;
    rope_plan *plan = NULL;
    desc.backend = backend;
    desc.device = device;
    const bool made = rope_plan_create(&desc, &plan) == ROPE_OK;
    const char *report = made ? rope_plan_report(plan) : rope_last_error();
    fprintf(file, "candidates for %s, head_dim %d:\n%s%s", options_dtype(o), desc.head_dim, report,
            report[0] && report[strlen(report) - 1] == '\n' ? "" : "\n");
    cJSON_AddStringToObject(record, "report", report);
    rope_plan_destroy(plan);
}

static void print_device(const options *o, const char *backend, int32_t index, record_list *list,
                         FILE *file) {
    rope_device *device;
    rope_device_info info = {.struct_size = sizeof info};
    cJSON *record = record_add(list);
    cJSON_AddStringToObject(record, "backend", backend);
    cJSON_AddNumberToObject(record, "device", index);
    if (!succeeded(rope_device_open(backend, index, &device), backend))
        return;
    if (succeeded(rope_device_get(device, &info), backend)) {
        fprintf(file, "\n%s device %d: %s\n", backend, index, info.name);
        fprintf(file, "features %s; %d compute units; %.1f GiB memory; %.1f MiB cache\n\n",
                info.features, info.compute_units, (double)info.memory_bytes * 0x1p-30,
                (double)info.cache_bytes * 0x1p-20);
        cJSON_AddStringToObject(record, "name", info.name);
        cJSON_AddStringToObject(record, "features", info.features);
        cJSON_AddNumberToObject(record, "memory_bytes", (double)info.memory_bytes);
        cJSON_AddNumberToObject(record, "cache_bytes", (double)info.cache_bytes);
        cJSON_AddNumberToObject(record, "compute_units", info.compute_units);
        print_report(o, backend, index, record, file);
    }
    rope_device_close(device);
}

int command_info(options *o) {
    record_list list;
    int32_t usable = 0;
    if (!check_wanted(o))
        return EXIT_ENVIRONMENT;
    FILE *file = text_open(o->json);
    record_begin(&list, "info", o, NULL);
    fprintf(file, "ropekit %s\n\n", rope_version());
    variables_print(&list, file);
    const bool is_read = !o->config || info_config(o, &list, file);
    print_backends(o, &list, file);
    for (int32_t i = 0; i < rope_backend_count(); i++) {
        rope_backend_info info = {.struct_size = sizeof info};
        if (rope_backend_get(i, &info) != ROPE_OK || !is_wanted(o, info.name))
            continue;
        usable += info.device_count;
        for (int32_t device = 0; device < info.device_count; device++)
            print_device(o, info.name, device, &list, file);
    }
    text_close(file);
    if (usable == 0)
        message("no usable device%s%s", o->desc.backend ? " of " : "",
                o->desc.backend ? o->desc.backend : "");
    return record_end(&list, o, true) && usable > 0 && is_read ? EXIT_OK : EXIT_ENVIRONMENT;
}
