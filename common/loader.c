#define _GNU_SOURCE
#include "common/loader.h"

#include "common/log.h"
#include "common/plugin_file.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char prefix[] = "libropekit_", suffix[] = ".so";

static char directories[256];

static int is_plugin(const struct dirent *file) {
    size_t length = strlen(file->d_name);
    return length > sizeof prefix + sizeof suffix - 2 &&
           strncmp(file->d_name, prefix, sizeof prefix - 1) == 0 &&
           strcmp(file->d_name + length - (sizeof suffix - 1), suffix) == 0;
}

/* A plugin stays loaded until the process ends, as its backend's functions must. */
static const rope_backend *load(const rope_host *host, const char *path, char *reason,
                                size_t size) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(reason, size, "%s", dlerror());
        return NULL;
    }
    void *symbol = dlsym(library, "rope_backend_entry");
    rope_backend_entry_function entry;
    memcpy(&entry, &symbol, sizeof entry);
    const rope_backend *backend = entry ? entry(host) : NULL;
    if (!entry)
        snprintf(reason, size, "%s exports no rope_backend_entry", path);
    else if (!backend)
        snprintf(reason, size, "%s does not serve backend ABI %d", path, ROPE_BACKEND_ABI);
    else if (backend->abi != ROPE_BACKEND_ABI)
        snprintf(reason, size, "%s has backend ABI %u; allowed is %d", path, backend->abi,
                 ROPE_BACKEND_ABI);
    else if (backend->struct_size < sizeof *backend)
        snprintf(reason, size, "%s has a rope_backend of %zu bytes; allowed is %zu or more", path,
                 backend->struct_size, sizeof *backend);
    else
        return backend;
    dlclose(library);
    return NULL;
}

void rope_loader_open(const rope_host *host, rope_entry *entry) {
    const char *wrong = rope_plugin_file_wrong(entry->origin);
    if (wrong)
        snprintf(entry->reason, sizeof entry->reason, "%.170s: %s", entry->origin, wrong);
    else
        entry->backend = load(host, entry->origin, entry->reason, sizeof entry->reason);
    rope_log(ROPE_LOG_CHOICE, "plugin %s: %s", entry->origin,
             entry->backend ? "loaded" : entry->reason);
}

static int is_known(const rope_entry *entries, int32_t count, const char *name) {
    for (int32_t i = 0; i < count; i++)
        if (strcmp(entries[i].name, name) == 0)
            return 1;
    return 0;
}

/* These return a negative count where memory runs out. */
static int32_t add_plugin(const char *directory, const char *file, rope_entry *entries,
                          int32_t count) {
    size_t length = strlen(file) - (sizeof prefix - 1) - (sizeof suffix - 1);
    char *name = strndup(file + sizeof prefix - 1, length), *path;
    const int made = name && asprintf(&path, "%s/%s", directory, file) >= 0;
    if (made && !is_known(entries, count, name)) {
        entries[count] = (rope_entry){.name = name, .origin = path};
        return count + 1;
    }
    free(name);
    if (made)
        free(path);
    return made ? count : -1;
}

static void tell_directory(const char *directory, const char *remark) {
    size_t used = strlen(directories);
    snprintf(directories + used, sizeof directories - used, "%s%s%s", used ? ", " : "", directory,
             remark);
}

static int32_t scan_directory(const char *directory, rope_entry *entries, int32_t count,
                              int32_t capacity) {
    struct dirent **files;
    if (count < 0)
        return count;
    int found = scandir(directory, &files, is_plugin, alphasort);
    if (found < 0 && errno == ENOMEM)
        return -1;
    tell_directory(directory, found < 0 ? " (no directory that can be read)" : "");
    for (int i = 0; i < found; i++) {
        if (count >= 0 && count < capacity)
            count = add_plugin(directory, files[i]->d_name, entries, count);
        free(files[i]);
    }
    if (found >= 0)
        free(files);
    return count;
}

/* The directory of libropekit.so; 0 in a program that holds the library itself. */
static int own_directory(char *directory, size_t size) {
#ifdef ROPE_STATIC
    (void)directory, (void)size;
    return 0;
#else
    Dl_info info;
    static const char anchor;
    if (!dladdr(&anchor, &info) || !info.dli_fname || info.dli_fname[0] != '/')
        return 0;
    const char *slash = strrchr(info.dli_fname, '/');
    size_t length = (size_t)(slash - info.dli_fname);
    if (length == 0 || length >= size)
        return 0;
    memcpy(directory, info.dli_fname, length);
    directory[length] = 0;
    return 1;
#endif
}

int rope_loader_path_is_valid(const char *path) {
    char directory[PATH_MAX];
    struct stat status;
    for (size_t length; *path; path += length + (path[length] == ':')) {
        length = strcspn(path, ":");
        snprintf(directory, sizeof directory, "%.*s", (int)length, path);
        if (length && (*path != '/' || stat(directory, &status) != 0 || !S_ISDIR(status.st_mode)))
            return 0;
    }
    return 1;
}

const char *rope_loader_directories(void) {
    return directories[0] ? directories : "no directory";
}

int32_t rope_loader_scan(rope_entry *entries, int32_t count, int32_t capacity) {
    const char *list = secure_getenv("ROPE_PLUGIN_PATH");
    char *copy = strdup(list ? list : ""), *rest = NULL;
    const int32_t first = count;
    directories[0] = 0;
    if (!copy)
        return -1;
    for (char *d = strtok_r(copy, ":", &rest); d; d = strtok_r(NULL, ":", &rest))
        if (d[0] == '/') {
            count = scan_directory(d, entries, count, capacity);
        } else {
            rope_log(ROPE_LOG_CHOICE, "ROPE_PLUGIN_PATH: \"%s\" is not absolute, skipped", d);
            tell_directory(d, " (not absolute: skipped)");
        }
    free(copy);
    char directory[PATH_MAX];
    if (own_directory(directory, sizeof directory))
        count = scan_directory(directory, entries, count, capacity);
    for (int32_t i = first; count < 0 && i < capacity; i++) {
        free((char *)entries[i].name);
        free((char *)entries[i].origin);
        entries[i] = (rope_entry){0};
    }
    return count;
}
