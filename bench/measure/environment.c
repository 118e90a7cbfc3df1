/* sched_getaffinity, sched_getcpu and environ. */
#define _GNU_SOURCE
#include "bench/measure/environment.h"

#include "bench/workload/target.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

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

static double cpu_mhz(void) {
    char value[64];
    return cpu_field("cpu MHz", value, sizeof value) ? strtod(value, NULL) : 0;
}

/* Processors that the process may use. */
static void add_affinity(cJSON *placement) {
    cpu_set_t set;
    cJSON *list = cJSON_AddArrayToObject(placement, "allowed");
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET(cpu, &set))
                cJSON_AddItemToArray(list, cJSON_CreateNumber(cpu));
}

/* The processor that each OpenMP thread runs on at this moment. */
static void add_threads(cJSON *placement) {
    int32_t threads = target_threads();
    int *cpus = calloc((size_t)threads, sizeof *cpus);
    if (!cpus)
        return;
    cpus[0] = sched_getcpu();
#ifdef _OPENMP
#pragma omp parallel num_threads(threads)
    cpus[omp_get_thread_num()] = sched_getcpu();
#endif
    cJSON_AddItemToObject(placement, "used", cJSON_CreateIntArray(cpus, threads));
    free(cpus);
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
    if (cpu_field("model name", value, sizeof value))
        cJSON_AddStringToObject(host, "cpu", value);
    if (uname(&system) == 0) {
        int version = (int)strcspn(system.release, "-"); /* without the name of a build */
        snprintf(value, sizeof value, "%.40s %.*s %.20s", system.sysname, version, system.release,
                 system.machine);
        cJSON_AddStringToObject(host, "system", value);
    }
    cJSON_AddNumberToObject(host, "mhz", cpu_mhz());
    cJSON_AddNumberToObject(host, "threads", target_threads());
    add_settings(host);
    cJSON *placement = cJSON_AddObjectToObject(host, "placement");
    const char *bind = getenv("OMP_PROC_BIND"), *places = getenv("OMP_PLACES");
    cJSON_AddStringToObject(placement, "bind", bind ? bind : "");
    cJSON_AddStringToObject(placement, "places", places ? places : "");
    add_affinity(placement);
    add_threads(placement);
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

/* One line of nvidia-smi, fields separated by ", "; empty where there is none. */
static void query_nvidia(int index, char *line, size_t size) {
    char identity[80], command[256];
    write_identity(index, identity, sizeof identity);
    snprintf(command, sizeof command,
             "nvidia-smi -i %s --query-gpu=driver_version,clocks.sm,clocks.mem,temperature.gpu,"
             "power.draw --format=csv,noheader,nounits 2>/dev/null",
             identity);
    FILE *answer = popen(command, "r");
    line[0] = '\0';
    if (answer && !fgets(line, (int)size, answer))
        line[0] = '\0';
    if (answer && pclose(answer) != 0)
        line[0] = '\0';
}

static void add_sample(cJSON *device, const char *moment, const char *const *names,
                       const double *values, int count) {
    cJSON *clocks = cJSON_GetObjectItem(device, "clocks");
    if (!clocks)
        clocks = cJSON_AddArrayToObject(device, "clocks");
    cJSON *sample = cJSON_CreateObject();
    cJSON_AddItemToArray(clocks, sample);
    cJSON_AddStringToObject(sample, "moment", moment);
    for (int i = 0; i < count; i++)
        cJSON_AddNumberToObject(sample, names[i], values[i]);
}

void environment_add_clocks(cJSON *device, const char *moment) {
    static const char *const names[] = {"core_mhz", "memory_mhz", "celsius", "watts"};
    const char *backend = cJSON_GetStringValue(cJSON_GetObjectItem(device, "backend"));
    double values[4] = {0};
    char line[256], driver[64];
    if (strcmp(backend, "cpu") == 0) {
        values[0] = cpu_mhz();
        add_sample(device, moment, names, values, 1);
        return;
    }
    query_nvidia(cJSON_GetObjectItem(device, "index")->valueint, line, sizeof line);
    if (strcmp(backend, "cuda") != 0 || sscanf(line, "%63[^,], %lf, %lf, %lf, %lf", driver,
                                               &values[0], &values[1], &values[2], &values[3]) < 3)
        return;
    if (!cJSON_HasObjectItem(device, "driver"))
        cJSON_AddStringToObject(device, "driver", driver);
    add_sample(device, moment, names, values, 4);
}
