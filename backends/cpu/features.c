#include "backends/cpu/features.h"

#include <ropekit/backend.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#endif

/* Of this architecture: another's would select what nobody asked for. */
#if defined(__x86_64__)
#define ISA_NAMES "scalar, avx2, avx512, avx512_bf16 or amx"
#elif defined(__aarch64__)
#define ISA_NAMES "scalar or neon"
#else
#define ISA_NAMES "scalar"
#endif
static const struct {
    const char *name;
    cpu_isa isa;
} isas[] = {
    {"scalar", CPU_ISA_SCALAR},
#if defined(__x86_64__)
    {"avx2", CPU_ISA_AVX2},     {"avx512", CPU_ISA_AVX512}, {"avx512_bf16", CPU_ISA_AVX512_BF16},
    {"amx", CPU_ISA_AMX},
#elif defined(__aarch64__)
    {"neon", CPU_ISA_NEON},
#endif
};

static cpu_isa present, allowed;
static int vbmi;
static char setting_error[ROPE_REASON_SIZE];
static int64_t cache_bytes;
static cpu_prefetch_policy policy;
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
    const uint32_t amx_states = 0x60000, amx = 1u << 24 | 1u << 22; /* tiles, and their bf16 */
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
    vbmi = (c7 & bit_AVX512VBMI) != 0;
    uint32_t a71, b71, c71, d71;
    int bf16 = __get_cpuid_count(7, 1, &a71, &b71, &c71, &d71) && (a71 & bit_AVX512BF16);
    if (!bf16)
        return CPU_ISA_AVX512;
    if ((d7 & amx) != amx || (states & amx_states) != amx_states)
        return CPU_ISA_AVX512_BF16;
    return CPU_ISA_AMX;
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

void cpu_read_file(const char *path, char *text, size_t size) {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t more = 1;
    while (file >= 0 && more > 0 && length < size - 1) {
        more = read(file, text + length, size - 1 - length);
        length += more > 0 ? (size_t)more : 0;
    }
    text[length] = 0;
    if (file >= 0)
        close(file);
}

/* Bytes of cpu 0's cache at an index, or 0. sysconf gives a socket's L3 where cores share a part.
 */
static int64_t cache_at(int index) {
    char path[80], text[16], *unit;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
    cpu_read_file(path, text, sizeof text);
    const int64_t n = strtol(text, &unit, 10);
    return n * (*unit == 'K' ? 1 << 10 : *unit == 'M' ? 1 << 20 : 0);
}

/* What was best where it was measured. Older processors of AMD follow Zen 4,
 * every one of Intel the Xeon that was measured, all others Zen 5. */
static const cpu_prefetch_policy zen5 = {.ahead = {6144, 8192},
                                         .within = 2048,
                                         .no_write_prefetch = 1,
                                         .split_loads = 2 << 20,
                                         .streams = 1},
                                 zen4 = {.ahead = {8192, 0},
                                         .into_l2 = 1,
                                         .split_loads = 256 << 10,
                                         .streams = 1},
                                 intel = {.ahead = {2048, 2048}, .within = 2048, .streams = 4};

static const cpu_prefetch_policy *policy_of_this_processor(void) {
#if defined(__x86_64__)
    uint32_t a, maker, version, b, c, d;
    if (!__get_cpuid(0, &a, &maker, &c, &d) || !__get_cpuid(1, &version, &b, &c, &d))
        return &zen5;
    uint32_t family = (version >> 8 & 15) + (version >> 20 & 255);
    if (maker == signature_INTEL_ebx)
        return &intel;
    if (maker == signature_AMD_ebx && family < 0x1a)
        return &zen4;
#else
    (void)zen4, (void)intel;
#endif
    return &zen5;
}

/* An L3 beyond 64 MiB is one socket's, far from each core: streaming wins as soon as L2 is left. */
static void detect_policy(void) {
    const int64_t mib = 1 << 20, l2 = cache_at(2), l3 = cache_at(3);
    cache_bytes = l3 ? l3 : l2 ? l2 : 32 * mib;
    policy = *policy_of_this_processor();
    policy.cache_bytes = l3 > 64 * mib && l2 ? 2 * l2 : cache_bytes;
}

/* Index in isas, or -1. */
static int find_isa(const char *name) {
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++)
        if (strcmp(name, isas[i].name) == 0)
            return (int)i;
    return -1;
}

static int is_isa(const char *name) {
    return find_isa(name) >= 0;
}

static void read_isa(const char *name) {
    cpu_isa isa = isas[find_isa(name)].isa;
    if (isa < allowed)
        allowed = isa;
}

static int is_stream(const char *text) {
    char *end;
    errno = 0;
    return strtoll(text, &end, 10) >= 0 && !errno && !*end;
}

static void read_stream(const char *text) {
    policy.cache_bytes = strtoll(text, NULL, 10);
}

static int is_streams(const char *text) {
    return strcmp(text, "1") == 0 || strcmp(text, "4") == 0;
}

static void read_streams(const char *text) {
    policy.streams = *text - '0';
}

const rope_setting cpu_settings[CPU_SETTINGS] = {
    {"ROPE_CPU_ISA", "highest instruction set of the CPU's kernels", ISA_NAMES, is_isa},
    {"ROPE_CPU_STREAM", "bytes from which calls on the CPU go around its cache",
     "a number of bytes, 0 or more", is_stream},
    {"ROPE_CPU_STREAMS", "parts of a thread's tokens that go around the cache side by side",
     "1 or 4", is_streams},
};

static void fill(void) {
    static void (*const read[CPU_SETTINGS])(const char *) = {read_isa, read_stream, read_streams};
    present = allowed = detect();
    detect_policy();
    for (int i = 0; i < CPU_SETTINGS; i++) {
        const char *value = getenv(cpu_settings[i].name);
        if (!value || !*value)
            continue;
        if (cpu_settings[i].is_valid(value))
            read[i](value);
        else
            snprintf(setting_error, sizeof setting_error, "%s is \"%.40s\"; allowed is %s",
                     cpu_settings[i].name, value, cpu_settings[i].allowed);
    }
}

cpu_isa cpu_isa_allowed(void) {
    pthread_once(&once, fill);
    return allowed;
}

int cpu_has_vbmi(void) {
    pthread_once(&once, fill);
    return vbmi;
}

/* The operating system keeps no memory for the state of tiles until a process asks for it. */
static int tiles_granted;

static void ask_for_tiles(void) {
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 };
    tiles_granted = syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
#endif
}

rope_status cpu_isa_query(cpu_isa needs, char *reason) {
    static pthread_once_t asked = PTHREAD_ONCE_INIT;
    const char *why = NULL;
    pthread_once(&once, fill);
    if (needs > present)
        why = "not supported by this processor";
    else if (needs > cpu_isa_allowed())
        why = "above ROPE_CPU_ISA";
    else if (needs == CPU_ISA_AMX && pthread_once(&asked, ask_for_tiles) == 0 && !tiles_granted)
        why = "the operating system refuses the state of tiles";
    if (why)
        snprintf(reason, ROPE_REASON_SIZE, "declined: %s", why);
    return why ? ROPE_DECLINED : ROPE_OK;
}

const char *cpu_setting_error(void) {
    pthread_once(&once, fill);
    return setting_error[0] ? setting_error : NULL;
}

int64_t cpu_cache_bytes(void) {
    pthread_once(&once, fill);
    return cache_bytes;
}

const cpu_prefetch_policy *cpu_prefetch_policy_chosen(void) {
    pthread_once(&once, fill);
    return &policy;
}
