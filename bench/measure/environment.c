/* environ. */
#define _GNU_SOURCE
#include "bench/measure/environment.h"

#include "bench/workload/target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

/* The processor as /proc/cpuinfo names it, where it does. */
static void add_model(cJSON *host) {
    static const char key[] = "model name";
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, sizeof key - 1) != 0)
            continue;
        line[strcspn(line, "\n")] = '\0';
        cJSON_AddStringToObject(host, "cpu", colon + 2);
        break;
    }
    if (file)
        fclose(file);
}

/* What the CPU backend was told by variables (docs/testing.md). */
static void add_settings(cJSON *host) {
    static const char prefix[] = "ROPE_CPU_";
    cJSON *settings = cJSON_AddObjectToObject(host, "settings");
    for (char **variable = environ; *variable; variable++) {
        char name[40];
        const char *value = strchr(*variable, '=');
        if (!value || !value[1] || strncmp(*variable, prefix, sizeof prefix - 1) != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)(value - *variable), *variable);
        cJSON_AddStringToObject(settings, name, value + 1);
    }
}

static void add_host(cJSON *document) {
    char value[128];
    struct utsname system;
    cJSON *host = cJSON_AddObjectToObject(document, "host");
    add_model(host);
    if (uname(&system) == 0) {
        int version = (int)strcspn(system.release, "-"); /* without the name of a build */
        snprintf(value, sizeof value, "%.40s %.*s %.20s", system.sysname, version, system.release,
                 system.machine);
        cJSON_AddStringToObject(host, "system", value);
    }
    cJSON_AddNumberToObject(host, "threads", target_threads());
    add_settings(host);
    cJSON *placement = cJSON_AddObjectToObject(host, "placement");
    const char *bind = getenv("OMP_PROC_BIND"), *places = getenv("OMP_PLACES");
    cJSON_AddStringToObject(placement, "bind", bind ? bind : "");
    cJSON_AddStringToObject(placement, "places", places ? places : "");
}

void environment_add(cJSON *document) {
    cJSON *build = cJSON_AddObjectToObject(document, "build");
    cJSON_AddStringToObject(build, "library", rope_version());
    cJSON_AddStringToObject(build, "commit", ROPEKIT_COMMIT);
    cJSON_AddStringToObject(build, "compiler", ROPEKIT_COMPILER);
    cJSON_AddStringToObject(build, "toolkit", ROPEKIT_TOOLKIT);
    add_host(document);
}

/* The device as nvidia-smi knows it: an entry of CUDA_VISIBLE_DEVICES where that is set. */
static void write_identity(int index, char *text, size_t size) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    snprintf(text, size, "%d", index);
    for (int i = 0; list && *list; i++) {
        size_t length = strcspn(list, ",");
        if (i == index)
            snprintf(text, size, "%.*s", (int)length, list);
        list += length + (list[length] == ',');
    }
    if (text[strspn(text, "0123456789abcdefABCDEFGPUMIG-/")] != '\0')
        snprintf(text, size, "%d", index);
}

void environment_add_driver(cJSON *device) {
    char identity[80], command[160], line[64] = "";
    if (strcmp(cJSON_GetStringValue(cJSON_GetObjectItem(device, "backend")), "cuda") != 0)
        return;
    write_identity(cJSON_GetObjectItem(device, "index")->valueint, identity, sizeof identity);
    snprintf(command, sizeof command,
             "nvidia-smi -i %s --query-gpu=driver_version --format=csv,noheader 2>/dev/null",
             identity);
    FILE *answer = popen(command, "r");
    const bool read = answer && fgets(line, sizeof line, answer);
    if (answer && pclose(answer) == 0 && read) {
        line[strcspn(line, "\n")] = '\0';
        cJSON_AddStringToObject(device, "driver", line);
    }
}
