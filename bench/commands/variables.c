#define _GNU_SOURCE
#include "bench/commands/variables.h"

#include "bench/output/message.h"
#include "bench/output/table.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool next(int32_t *index, rope_variable_info *info) {
    *info = (rope_variable_info){.struct_size = sizeof *info};
    return rope_variable_get((*index)++, info) == ROPE_OK;
}

bool variables_check(const options *o) {
    rope_variable_info info = {.struct_size = sizeof info};
    if (o->desc.backend) /* not in force, and nothing is opened for it */
        unsetenv("ROPE_BACKEND");
    for (int32_t i = rope_variable_count(); i-- > 0;) {
        if (rope_variable_get(i, &info) != ROPE_OK || info.status == ROPE_OK)
            continue;
        message("%s: %s", rope_status_string(info.status), info.reason);
        return false;
    }
    return true;
}

static bool is_read(const char *name, size_t length) {
    rope_variable_info info;
    for (int32_t i = 0; next(&i, &info);)
        if (strlen(info.name) == length && strncmp(info.name, name, length) == 0)
            return true;
    return false;
}

static void add(table *t, record_list *list, const char *name, const char *value,
                const char *selects, const char *status) {
    char shown[256];
    snprintf(shown, sizeof shown, "%s", value);
    for (char *c = shown; *c; c++) /* as in messages */
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            *c = '?';
    table_cell(t, "%s", name);
    table_cell(t, "%s", shown);
    table_cell(t, "%s", selects);
    table_cell(t, "%s", status);
    cJSON *record = record_add(list);
    cJSON_AddStringToObject(record, "variable", name);
    cJSON_AddStringToObject(record, "value", value);
    cJSON_AddStringToObject(record, "selects", selects);
    cJSON_AddStringToObject(record, "status", status);
}

/* The name of a variable that looks like ropekit's and that nothing reads, or "". */
static const char *unknown(const char *entry) {
    static char name[64];
    const size_t length = strcspn(entry, "=");
    const bool ours =
        entry[length] && strncmp(entry, "ROPE_", 5) == 0 && strncmp(entry, "ROPE_TEST_", 10) != 0;
    snprintf(name, sizeof name, "%.*s", ours && !is_read(entry, length) ? (int)length : 0, entry);
    return name;
}

void variables_warn(void) {
    for (char **entry = environ; *entry; entry++)
        if (*unknown(*entry))
            message("warning: %s is set, and ropekit knows no such variable", unknown(*entry));
}

void variables_print(record_list *list, FILE *file) {
    rope_variable_info info;
    table t;
    table_begin(&t, "variable|value|selects|status");
    for (int32_t i = 0; next(&i, &info);)
        if (info.value)
            add(&t, list, info.name, info.value, info.selects,
                info.status == ROPE_OK ? "in force" : info.reason);
    for (char **entry = environ; *entry; entry++)
        if (*unknown(*entry))
            add(&t, list, unknown(*entry), strchr(*entry, '=') + 1, "nothing",
                "not known to ropekit");
    if (t.count > t.columns) {
        table_print(&t, file);
        fputc('\n', file);
    }
    table_end(&t);
}
