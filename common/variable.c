/* The variables of the environment that decide something, each checked by whoever reads it. */
#include "common/abi.h"
#include "common/loader.h"
#include "common/log.h"
#include "common/status.h"
#include "common/tuning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const rope_setting own[] = {
    {"ROPE_BACKEND", "backend of plans and devices that name none", "a backend", NULL},
    {"ROPE_PLUGIN_PATH", "where plugins are found before those beside libropekit.so",
     "absolute paths of directories with colons between them", rope_loader_path_is_valid},
    {"ROPE_TUNING", "table by which calls of attention choose a kernel",
     "a table of ropekit tune, or none", rope_tuning_is_valid},
    {"ROPE_VERBOSE", "lines of the log", ROPE_LOG_LEVELS, rope_log_level_is_valid},
};
enum { OWN_COUNT = sizeof own / sizeof own[0] };

/* The index-th of the library's own, then of opened backends; NULL past the last. */
static const rope_setting *setting_at(int32_t index) {
    const rope_backend *backend;
    if (index >= 0 && index < OWN_COUNT)
        return &own[index];
    index -= OWN_COUNT;
    for (int32_t b = 0; index >= 0 && (backend = rope_registry_opened(b)); b++) {
        if (index < backend->setting_count)
            return &backend->settings[index];
        index -= backend->setting_count;
    }
    return NULL;
}

int32_t rope_variable_count(void) {
    int32_t count = 0;
    while (setting_at(count))
        count++;
    return count;
}

typedef struct texts {
    char selects[160], reason[800];
} texts;

static rope_status check(const rope_setting *setting, const char *value, texts *t) {
    const rope_backend *backend;
    rope_status status = ROPE_OK;
    if (setting == &own[0]) { /* the names must lead to a device */
        status = rope_registry_choose(NULL, 0, &backend);
        if (status == ROPE_OK)
            snprintf(t->selects, sizeof t->selects, "%s: %s", setting->selects, backend->name);
        else
            snprintf(t->reason, sizeof t->reason, "%s", rope_last_error());
    } else if (!setting->is_valid(value)) {
        status = ROPE_ERROR_INVALID_VALUE;
        snprintf(t->reason, sizeof t->reason, "%s is \"%.60s\"; allowed is %s", setting->name,
                 value, setting->allowed);
    }
    return status;
}

rope_status rope_variable_get(int32_t index, rope_variable_info *info) {
    static _Thread_local texts t;
    const rope_setting *setting = setting_at(index);
    if (!info)
        return rope_fail_null("info");
    if (!setting)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "index is %d; allowed is 0..%d", index,
                         rope_variable_count() - 1);
    const char *value = getenv(setting->name);
    rope_variable_info full = {.name = setting->name,
                               .selects = t.selects,
                               .value = value && *value ? value : NULL,
                               .reason = t.reason};
    snprintf(t.selects, sizeof t.selects, "%s", setting->selects);
    t.reason[0] = 0;
    if (full.value)
        full.status = check(setting, full.value, &t);
    return rope_abi_write(info, &full, sizeof full, "rope_variable_info");
}
