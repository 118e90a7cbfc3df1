#define _GNU_SOURCE
#include "common/loader.h"

#include "common/log.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char prefix[] = "libropekit_", suffix[] = ".so";

static char directories[256];

static int is_plugin(const struct dirent *file) {
    size_t length = strlen(file->d_name);
    return length > sizeof prefix + sizeof suffix - 2 &&
           strncmp(file->d_name, prefix, sizeof prefix - 1) == 0 &&
           strcmp(file->d_name + length - (sizeof suffix - 1), suffix) == 0;
}

#if defined(__x86_64__)
#define THIS_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define THIS_MACHINE EM_AARCH64
#elif defined(__powerpc64__)
#define THIS_MACHINE EM_PPC64
#elif defined(__riscv)
#define THIS_MACHINE EM_RISCV
#endif

/* What keeps a shared object from being one of this machine, or NULL. */
static const char *misfit(const ElfW(Ehdr) * header) {
    const uint16_t one = 1;
    const int data = *(const unsigned char *)&one ? ELFDATA2LSB : ELFDATA2MSB;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0)
        return "no ELF file";
    if (header->e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) ||
        header->e_ident[EI_DATA] != data)
        return "an ELF file of another word size or byte order";
#ifdef THIS_MACHINE
    if (header->e_machine != THIS_MACHINE)
        return "an ELF file for another processor";
#endif
    if (header->e_type != ET_DYN || header->e_phentsize != sizeof(ElfW(Phdr)))
        return "an ELF file, but no shared object";
    return NULL;
}

static int fits(uint64_t from, uint64_t bytes, uint64_t size) {
    return from <= size && bytes <= size - from;
}

/* Whether program headers, section headers and every loaded segment lie within the file. */
static int is_whole(int file, const ElfW(Ehdr) * header, uint64_t size) {
    if (!fits(header->e_phoff, (uint64_t)header->e_phnum * sizeof(ElfW(Phdr)), size) ||
        !fits(header->e_shoff, (uint64_t)header->e_shnum * header->e_shentsize, size))
        return 0;
    int loads = 0;
    for (int i = 0; i < header->e_phnum; i++) {
        ElfW(Phdr) segment;
        off_t at = (off_t)(header->e_phoff + (uint64_t)i * sizeof segment);
        if (pread(file, &segment, sizeof segment, at) != (ssize_t)sizeof segment)
            return 0;
        if (segment.p_type == PT_LOAD && !fits(segment.p_offset, segment.p_filesz, size))
            return 0;
        loads += segment.p_type == PT_LOAD;
    }
    return loads > 0;
}

/* Looks at an open file; NULL, or what is wrong with it. */
static const char *inspect(int file) {
    struct stat status;
    ElfW(Ehdr) header;
    if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode))
        return "no regular file";
    if (pread(file, &header, sizeof header, 0) != (ssize_t)sizeof header)
        return "too short for an ELF file";
    const char *wrong = misfit(&header);
    if (!wrong && !is_whole(file, &header, (uint64_t)status.st_size))
        wrong = "truncated: its headers name bytes beyond its end";
    return wrong;
}

/* What is not a regular file is not even opened: a FIFO would wait, a device might act. */
static int can_be_opened(rope_entry *entry) {
    struct stat status;
    const char *wrong = NULL;
    if (stat(entry->origin, &status) != 0)
        wrong = strerror(errno);
    else if (!S_ISREG(status.st_mode))
        wrong = "no regular file";
    int file = wrong ? -1 : open(entry->origin, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (!wrong)
        wrong = file < 0 ? strerror(errno) : inspect(file);
    if (file >= 0)
        close(file);
    if (wrong)
        snprintf(entry->reason, sizeof entry->reason, "%s: %s", entry->origin, wrong);
    return !wrong;
}

/* A plugin stays loaded until the process ends, as its backend's functions must. */
static const rope_backend *load(const rope_host *host, const char *path, char *reason,
                                size_t room) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(reason, room, "%s", dlerror());
        return NULL;
    }
    void *symbol = dlsym(library, "rope_backend_entry");
    rope_backend_entry_function entry;
    memcpy(&entry, &symbol, sizeof entry);
    const rope_backend *backend = entry ? entry(host) : NULL;
    if (!entry)
        snprintf(reason, room, "%s exports no rope_backend_entry", path);
    else if (!backend)
        snprintf(reason, room, "%s does not serve backend ABI %d", path, ROPE_BACKEND_ABI);
    else if (backend->abi != ROPE_BACKEND_ABI)
        snprintf(reason, room, "%s has backend ABI %u; allowed is %d", path, backend->abi,
                 ROPE_BACKEND_ABI);
    else
        return backend;
    dlclose(library);
    return NULL;
}

void rope_loader_open(const rope_host *host, rope_entry *entry) {
    if (can_be_opened(entry))
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

static int32_t add_plugin(const char *directory, const char *file, rope_entry *entries,
                          int32_t count) {
    size_t length = strlen(file) - (sizeof prefix - 1) - (sizeof suffix - 1);
    char *name = strndup(file + sizeof prefix - 1, length);
    char *path = NULL;
    if (!name || asprintf(&path, "%s/%s", directory, file) < 0 || is_known(entries, count, name)) {
        free(name);
        free(path);
        return count;
    }
    entries[count] = (rope_entry){.name = name, .origin = path};
    return count + 1;
}

static int32_t scan_directory(const char *directory, rope_entry *entries, int32_t count,
                              int32_t room) {
    struct dirent **files;
    size_t used = strlen(directories);
    snprintf(directories + used, sizeof directories - used, "%s%s", used ? ", " : "", directory);
    int found = scandir(directory, &files, is_plugin, alphasort);
    for (int i = 0; i < found; i++) {
        if (count < room)
            count = add_plugin(directory, files[i]->d_name, entries, count);
        free(files[i]);
    }
    if (found >= 0)
        free(files);
    return count;
}

/* The directory of libropekit.so; 0 in a program that holds the library itself. */
static int own_directory(char *directory, size_t room) {
#ifdef ROPE_STATIC
    (void)directory, (void)room;
    return 0;
#else
    Dl_info info;
    static const char anchor;
    if (!dladdr(&anchor, &info) || !info.dli_fname || info.dli_fname[0] != '/')
        return 0;
    const char *slash = strrchr(info.dli_fname, '/');
    size_t length = (size_t)(slash - info.dli_fname);
    if (length == 0 || length >= room)
        return 0;
    memcpy(directory, info.dli_fname, length);
    directory[length] = 0;
    return 1;
#endif
}

int rope_loader_path_is_valid(const char *path) {
    for (const char *d = path; *d; d += strcspn(d, ":"), d += *d == ':')
        if (*d != '/' && *d != ':')
            return 0;
    return 1;
}

const char *rope_loader_directories(void) {
    return directories[0] ? directories : "no directory";
}

int32_t rope_loader_scan(rope_entry *entries, int32_t count, int32_t room) {
    const char *list = secure_getenv("ROPE_PLUGIN_PATH");
    char *copy = list ? strdup(list) : NULL, *rest = NULL;
    for (char *d = copy ? strtok_r(copy, ":", &rest) : NULL; d; d = strtok_r(NULL, ":", &rest))
        if (d[0] == '/')
            count = scan_directory(d, entries, count, room);
        else
            rope_log(ROPE_LOG_CHOICE, "ROPE_PLUGIN_PATH: \"%s\" is not absolute, skipped", d);
    free(copy);
    char directory[PATH_MAX];
    if (own_directory(directory, sizeof directory))
        count = scan_directory(directory, entries, count, room);
    return count;
}
