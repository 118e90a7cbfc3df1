#define _GNU_SOURCE
#include "common/registry.h"

#include "common/loader.h"
#include "common/log.h"
#include "common/status.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const rope_backend *rope_backend_cpu(const rope_host *host);

static const rope_backend_entry_function built_in[] = {rope_backend_cpu};
enum { BUILT_IN_COUNT = sizeof built_in / sizeof built_in[0] };

static const rope_host host = {ROPE_BACKEND_ABI, rope_fail};

/* As they were found; which are opened is guarded by open_mutex. */
static rope_entry entries[ROPE_MAX_BACKENDS];
static int32_t entry_count;
static pthread_mutex_t find_mutex = PTHREAD_MUTEX_INITIALIZER,
                       open_mutex = PTHREAD_MUTEX_INITIALIZER;

/* In the order of "auto". */
static const rope_entry *ordered[ROPE_MAX_BACKENDS];
static pthread_once_t sorted = PTHREAD_ONCE_INIT;

static int32_t find(void) {
    for (int i = 0; i < BUILT_IN_COUNT; i++) {
        const rope_backend *backend = built_in[i](&host);
        entries[i] = (rope_entry){
            .name = backend->name, .origin = "built in", .opened = 1, .backend = backend};
    }
    return rope_loader_scan(entries, BUILT_IN_COUNT, ROPE_MAX_BACKENDS);
}

/* Again after a call whose memory ran out. */
static rope_status find_all(void) {
    pthread_mutex_lock(&find_mutex);
    const int32_t count = entry_count ? entry_count : find();
    if (entry_count == 0 && count > 0)
        entry_count = count;
    pthread_mutex_unlock(&find_mutex);
    return count > 0 ? ROPE_OK
                     : rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for the names of plugins");
}

const rope_backend *rope_registry_opened(int32_t index) {
    const rope_backend *backend = NULL;
    if (find_all() != ROPE_OK)
        return NULL;
    pthread_mutex_lock(&open_mutex);
    for (int32_t i = 0; i < entry_count && index >= 0; i++)
        if (entries[i].backend && index-- == 0)
            backend = entries[i].backend;
    pthread_mutex_unlock(&open_mutex);
    return backend;
}

static const rope_entry *open_entry(rope_entry *entry) {
    pthread_mutex_lock(&open_mutex);
    if (!entry->opened)
        rope_loader_open(&host, entry);
    entry->opened = 1;
    pthread_mutex_unlock(&open_mutex);
    return entry;
}

static int32_t priority_of(const rope_entry *entry) {
    return entry->backend ? entry->backend->priority : INT32_MIN;
}

/* The highest first, and equals as they were found. */
static int by_priority(const void *a, const void *b) {
    const rope_entry *x = *(const rope_entry *const *)a, *y = *(const rope_entry *const *)b;
    const int32_t of_x = priority_of(x), of_y = priority_of(y);
    return of_x != of_y ? (of_x < of_y) - (of_x > of_y) : (x > y) - (x < y);
}

static void sort_all(void) {
    for (int32_t i = 0; i < entry_count; i++)
        ordered[i] = open_entry(&entries[i]);
    qsort(ordered, (size_t)entry_count, sizeof(const rope_entry *), by_priority);
}

int32_t rope_registry_count(void) {
    if (find_all() != ROPE_OK)
        return 0;
    pthread_once(&sorted, sort_all);
    return entry_count;
}

const rope_entry *rope_registry_entry(int32_t index) {
    return index >= 0 && index < rope_registry_count() ? ordered[index] : NULL;
}

/* Appends one line of a message that says what was tried. */
static void append(char *text, size_t size, const char *name, const char *reason) {
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s: %s", used ? "; " : "", name, reason);
}

/* ROPE_OK when the entry has the device; otherwise its status, with the reason appended. */
static rope_status try_entry(const rope_entry *entry, int32_t device, char *text, size_t size) {
    char reason[ROPE_REASON_SIZE] = "";
    int32_t count = 0;
    if (!entry->backend) {
        append(text, size, entry->name, entry->reason);
        return ROPE_ERROR_NO_BACKEND;
    }
    rope_status status = entry->backend->device_count(&count, reason);
    if (status == ROPE_OK && device < count)
        return ROPE_OK;
    if (status == ROPE_OK) {
        if (count > 0)
            snprintf(reason, sizeof reason, "device is %d; allowed is 0..%d", device, count - 1);
        else
            snprintf(reason, sizeof reason, "it has no device");
        status = ROPE_ERROR_NO_DEVICE;
    }
    append(text, size, entry->name, reason);
    return status;
}

const rope_entry *rope_registry_find(const char *name, size_t length) {
    if (find_all() != ROPE_OK)
        return NULL;
    for (int32_t i = 0; i < entry_count; i++)
        if (strlen(entries[i].name) == length && strncmp(entries[i].name, name, length) == 0)
            return open_entry(&entries[i]);
    return NULL;
}

/* Appends that a name is not known, where its plugin was looked for, and the names that are. */
static void append_unknown(char *text, size_t size, const char *name, int length) {
    char known[200] = "";
    for (int32_t i = 0; i < entry_count; i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, ", %s", entries[i].name);
    }
    size_t used = strlen(text);
    if (length == 0)
        snprintf(text + used, size - used, "%sa name is empty; allowed is auto%s", used ? "; " : "",
                 known);
    else
        snprintf(
            text + used, size - used,
            "%s%.*s: no libropekit_%.*s.so in %s (ROPE_PLUGIN_PATH, then beside libropekit.so): "
            "build it with that backend's toolkit present; allowed is auto%s",
            used ? "; " : "", length, name, length, name, rope_loader_directories(), known);
}

static rope_status choose_auto(int32_t device, const rope_backend **backend) {
    char text[640] = "";
    rope_status status = ROPE_ERROR_NO_BACKEND;
    for (int32_t i = 0; i < rope_registry_count(); i++) {
        status = try_entry(ordered[i], device, text, sizeof text);
        if (status == ROPE_OK) {
            *backend = ordered[i]->backend;
            return ROPE_OK;
        }
    }
    return rope_fail(status, "backend is \"auto\" and none can be used: %s", text);
}

rope_status rope_registry_choose(const char *names, int32_t device, const rope_backend **backend) {
    const char *field = "backend";
    rope_status status = find_all();
    if (status != ROPE_OK)
        return status;
    if (!names || !*names) {
        names = getenv("ROPE_BACKEND");
        field = "ROPE_BACKEND";
    }
    if (!names || !*names)
        return choose_auto(device, backend);
    char text[640] = "";
    status = ROPE_ERROR_NO_BACKEND;
    for (const char *name = names; *name;) {
        size_t length = strcspn(name, ",");
        if (length == 4 && strncmp(name, "auto", 4) == 0)
            return choose_auto(device, backend);
        const rope_entry *entry = rope_registry_find(name, length);
        if (entry) {
            status = try_entry(entry, device, text, sizeof text);
        } else {
            append_unknown(text, sizeof text, name, length < 60 ? (int)length : 60);
            status = ROPE_ERROR_NO_BACKEND;
        }
        if (entry && status == ROPE_OK) {
            *backend = entry->backend;
            return ROPE_OK;
        }
        name += length + (name[length] == ',');
    }
    return rope_fail(status, "%s is \"%.100s\": %s", field, names, text);
}

int32_t rope_backend_count(void) {
    return rope_registry_count();
}
