#include "backends/cpu/features.h"

#include <ropekit/backend.h>

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static const char *const isa_names[] = {"scalar", "neon", "avx2", "avx512", "avx512_bf16"};

static cpu_isa present, allowed;
static char setting_error[ROPE_REASON_SIZE];
static int64_t cache_bytes, stream_bytes;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)
/* The register states that the operating system saves, or 0 where xgetbv itself is missing. */
static uint32_t saved_states(uint32_t leaf1_ecx) {
    if (!(leaf1_ecx & bit_OSXSAVE))
        return 0;
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static cpu_isa detect(void) {
    const uint32_t avx_states = 0x06, avx512_states = 0xe6;
    uint32_t a, b, c, d, b7, c7, d7;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !__get_cpuid_count(7, 0, &a, &b7, &c7, &d7))
        return CPU_ISA_SCALAR;
    uint32_t states = saved_states(c);
    if ((states & avx_states) != avx_states || !(c & bit_FMA) || !(c & bit_F16C) ||
        !(b7 & bit_AVX2))
        return CPU_ISA_SCALAR;
    uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    if ((states & avx512_states) != avx512_states || (b7 & avx512) != avx512)
        return CPU_ISA_AVX2;
    uint32_t a71, b71, c71, d71;
    int bf16 = __get_cpuid_count(7, 1, &a71, &b71, &c71, &d71) && (a71 & bit_AVX512BF16);
    return bf16 ? CPU_ISA_AVX512_BF16 : CPU_ISA_AVX512;
}
#elif defined(__aarch64__)
static cpu_isa detect(void) {
    return CPU_ISA_NEON;
}
#else
static cpu_isa detect(void) {
    return CPU_ISA_SCALAR;
}
#endif

/* An L3 beyond 64 MiB is one socket's, far from each core: streaming wins as soon as L2 is left. */
static void detect_caches(void) {
    const int64_t mib = 1 << 20;
    long l3 = -1, l2 = -1;
#if defined(_SC_LEVEL3_CACHE_SIZE)
    l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    l2 = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    cache_bytes = l3 > 0 ? l3 : l2 > 0 ? l2 : 32 * mib;
    stream_bytes = cache_bytes > 64 * mib && l2 > 0 ? 2 * l2 : cache_bytes;
}

static void read_isa(const char *name) {
    int isa = 0, count = sizeof isa_names / sizeof isa_names[0];
    while (isa < count && strcmp(name, isa_names[isa]) != 0)
        isa++;
    if (isa == count)
        snprintf(setting_error, sizeof setting_error,
                 "ROPE_CPU_ISA is \"%.40s\"; allowed is scalar, neon, avx2, avx512 or avx512_bf16",
                 name);
    else if ((cpu_isa)isa < allowed)
        allowed = (cpu_isa)isa;
}

static void read_stream_bytes(const char *text) {
    char *end;
    errno = 0;
    long long bytes = strtoll(text, &end, 10);
    if (errno || *end || bytes < 0)
        snprintf(setting_error, sizeof setting_error,
                 "ROPE_CPU_STREAM is \"%.40s\"; allowed is a number of bytes, 0 or more", text);
    else
        stream_bytes = bytes;
}

static void fill(void) {
    present = allowed = detect();
    detect_caches();
    const char *isa = getenv("ROPE_CPU_ISA"), *stream = getenv("ROPE_CPU_STREAM");
    if (isa && *isa)
        read_isa(isa);
    if (stream && *stream)
        read_stream_bytes(stream);
}

cpu_isa cpu_isa_present(void) {
    pthread_once(&once, fill);
    return present;
}

cpu_isa cpu_isa_allowed(void) {
    pthread_once(&once, fill);
    return allowed;
}

const char *cpu_setting_error(void) {
    pthread_once(&once, fill);
    return setting_error[0] ? setting_error : NULL;
}

int64_t cpu_cache_bytes(void) {
    pthread_once(&once, fill);
    return cache_bytes;
}

int64_t cpu_stream_bytes(void) {
    pthread_once(&once, fill);
    return stream_bytes;
}

void cpu_model_name(char *text, int size) {
    snprintf(text, (size_t)size, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value += strspn(value, ": \t");
        value[strcspn(value, "\n")] = 0;
        snprintf(text, (size_t)size, "%s", value);
        break;
    }
    if (file)
        fclose(file);
}
