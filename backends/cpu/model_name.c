#include "backends/cpu/model_name.h"

#include "backends/cpu/features.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Linux's arch/x86/kernel/cpu/amd.c and arch/x86/include/asm/intel-family.h. Models of a row are
 * consecutive. */
static const struct {
    const char *maker;
    int family, first, last;
    const char *name;
} known[] = {
    {"AuthenticAMD", 0x17, 0x00, 0x2f, "Zen"},
    {"AuthenticAMD", 0x17, 0x30, 0x4f, "Zen 2"},
    {"AuthenticAMD", 0x17, 0x50, 0x5f, "Zen"},
    {"AuthenticAMD", 0x17, 0x60, 0x7f, "Zen 2"},
    {"AuthenticAMD", 0x17, 0x90, 0x91, "Zen 2"},
    {"AuthenticAMD", 0x17, 0xa0, 0xaf, "Zen 2"},
    {"AuthenticAMD", 0x19, 0x00, 0x0f, "Zen 3"},
    {"AuthenticAMD", 0x19, 0x10, 0x1f, "Zen 4"},
    {"AuthenticAMD", 0x19, 0x20, 0x5f, "Zen 3"},
    {"AuthenticAMD", 0x19, 0x60, 0xaf, "Zen 4"},
    {"AuthenticAMD", 0x1a, 0x00, 0x2f, "Zen 5"},
    {"AuthenticAMD", 0x1a, 0x40, 0x4f, "Zen 5"},
    {"AuthenticAMD", 0x1a, 0x60, 0x7f, "Zen 5"},
    {"GenuineIntel", 6, 0x3f, 0x3f, "Haswell"},
    {"GenuineIntel", 6, 0x4f, 0x4f, "Broadwell"},
    {"GenuineIntel", 6, 0x55, 0x55, "Skylake or Cascade Lake"},
    {"GenuineIntel", 6, 0x6a, 0x6a, "Ice Lake"},
    {"GenuineIntel", 6, 0x6c, 0x6c, "Ice Lake"},
    {"GenuineIntel", 6, 0x8c, 0x8d, "Tiger Lake"},
    {"GenuineIntel", 6, 0x8f, 0x8f, "Sapphire Rapids"},
    {"GenuineIntel", 6, 0x97, 0x97, "Alder Lake"},
    {"GenuineIntel", 6, 0x9a, 0x9a, "Alder Lake"},
    {"GenuineIntel", 6, 0xa7, 0xa7, "Rocket Lake"},
    {"GenuineIntel", 6, 0xad, 0xae, "Granite Rapids"},
    {"GenuineIntel", 6, 0xb7, 0xb7, "Raptor Lake"},
    {"GenuineIntel", 6, 0xcf, 0xcf, "Emerald Rapids"},
};

static const char *microarchitecture(const char *maker, int family, int model) {
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].family == family && known[i].first <= model && model <= known[i].last &&
            strcmp(known[i].maker, maker) == 0)
            return known[i].name;
    return NULL;
}

/* The value of a line of /proc/cpuinfo if it has that key. */
static const char *line_value(char *line, const char *key) {
    size_t length = strlen(key);
    char *value = strchr(line, ':');
    if (!value || strncmp(line, key, length) != 0 || (line[length] != '\t' && line[length] != ':'))
        return NULL;
    return value + strspn(value, ": \t");
}

static int number(const char *text) {
    return (int)strtol(text, NULL, 10);
}

void cpu_model_name(char *text, int size) {
    enum { BRAND, FAMILY, MODEL, MAKER, KEYS };
    static const char *const keys[KEYS] = {"model name", "cpu family", "model", "vendor_id"};
    char found[KEYS][96] = {"unknown"}, lines[4096], *line = lines, *end;
    cpu_read_file("/proc/cpuinfo", lines, sizeof lines);
    for (; (end = strchr(line, '\n')) && end != line; line = end + 1) {
        *end = 0;
        for (int i = 0; i < KEYS; i++) {
            const char *value = line_value(line, keys[i]);
            if (value)
                snprintf(found[i], sizeof found[i], "%s", value);
        }
    }
    const char *name = microarchitecture(found[MAKER], number(found[FAMILY]), number(found[MODEL]));
    if (name)
        snprintf(text, (size_t)size, "%s (%s)", found[BRAND], name);
    else if (found[FAMILY][0] && found[MODEL][0])
        snprintf(text, (size_t)size, "%s (family %s, model %s)", found[BRAND], found[FAMILY],
                 found[MODEL]);
    else
        snprintf(text, (size_t)size, "%s", found[BRAND]);
}
