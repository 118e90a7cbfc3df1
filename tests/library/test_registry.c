/* The registry, once in a fresh process for each setting of the environment: registry_probe and the
 * folder plugin lie beside this program, in a build tree and in a bundle. */
#define _GNU_SOURCE
#include "tests/support/harness.h"

#include <errno.h>
#include <link.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_VARIABLES = 256 };
static char output[16384];

/* `before`, the folder of this program, `after`; the last four are kept. */
static const char *beside(const char *before, const char *after) {
    static char texts[4][1024];
    static unsigned next;
    char *text = texts[next++ % 4];
    const char *program = test_program(), *name = strrchr(program, '/');
    snprintf(text, sizeof texts[0], "%s%.*s%s", before, name ? (int)(name - program) : 0, program,
             after);
    return text;
}

/* The environment without what this library reads and without GPUs, which auto would take, plus the
 * given variables. */
static void make_environment(const char *const *set, const char **list) {
    int count = 0;
    list[count++] = "CUDA_VISIBLE_DEVICES=-1";
    list[count++] = "HIP_VISIBLE_DEVICES=-1";
    for (char **e = environ; *e && count < MOST_VARIABLES - 8; e++)
        if (strncmp(*e, "ROPE_", 5) != 0)
            list[count++] = *e;
    for (; set && *set; set++)
        list[count++] = *set;
    list[count] = NULL;
}

static void read_all(int from) {
    size_t used = 0;
    ssize_t n;
    while (used < sizeof output - 1 &&
           (n = read(from, output + used, sizeof output - 1 - used)) > 0)
        used += (size_t)n;
    output[used] = 0;
}

/* Exit status of the probe; its standard output is left in `output`. */
static int probe(const char *const *set, const char *command, const char *names) {
    const char *list[MOST_VARIABLES];
    const char *path = beside("", "/registry_probe");
    const char *arguments[] = {path, command, names, NULL};
    int ends[2], status;
    pid_t child;
    posix_spawn_file_actions_t actions;
    make_environment(set, list);
    CHECK(pipe(ends) == 0, "no pipe");
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    int error = posix_spawn(&child, path, &actions, NULL, (char **)(uintptr_t)arguments,
                            (char **)(uintptr_t)list);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    if (error == 0)
        read_all(ends[0]);
    close(ends[0]);
    if (error == ENOENT)
        SKIP("%s is not here", path);
    if (error == ENOEXEC)
        SKIP("%s cannot be run under this emulator", path);
    CHECK(error == 0, "%s: %s", path, strerror(error));
    CHECK(waitpid(child, &status, 0) == child, "the probe is lost");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 127) /* the child could not exec */
        SKIP("%s cannot be run under this emulator", path);
    CHECK(WIFEXITED(status), "the probe ended by signal %d", WTERMSIG(status));
    return WEXITSTATUS(status);
}

/* Runs the probe with up to three variables and expects an exit status and parts of its output. */
#define PROBE(status, command, names, first, second, ...)                                          \
    do {                                                                                           \
        const char *const set[] = {__VA_ARGS__, NULL};                                             \
        int got = probe(set, command, names);                                                      \
        CHECK(got == (status), "exit status %d, not %d: %s", got, status, output);                 \
        CHECK(strstr(output, first) && strstr(output, second), "no \"%s\" and \"%s\" in: %s",      \
              first, second, output);                                                              \
    } while (0)

#define PLUGINS beside("ROPE_PLUGIN_PATH=", "/plugin")

TEST(registry, cpu_is_built_in) {
    PROBE(0, "list", NULL, "cpu|ROPE_OK|1|built in|", "", "ROPE_BACKEND=cpu");
    PROBE(0, "open", "-", "ok cpu", "", "ROPE_BACKEND=cpu");
    PROBE(0, "open", "cpu", "ok cpu", "", "ROPE_BACKEND=nonesuch");
    PROBE(0, "open", "-", "ok cpu", "", "ROPE_BACKEND=");
}

TEST(registry, lists_and_auto) {
    PROBE(0, "open", "auto", "ok cpu", "", "ROPE_BACKEND=nonesuch");
    PROBE(0, "open", "-", "ok cpu", "", "ROPE_BACKEND=auto");
    PROBE(0, "open", "-", "ok cpu", "", "ROPE_BACKEND=nonesuch,cpu");
    PROBE(0, "open", "nonesuch,cpu", "ok cpu", "", "ROPE_VERBOSE=0");
}

/* Never a silent fallback. */
TEST(registry, a_missing_backend_is_an_error) {
    PROBE(1, "open", "nonesuch", "ROPE_ERROR_NO_BACKEND", "nonesuch", "ROPE_VERBOSE=0");
    PROBE(1, "open", "-", "ROPE_ERROR_NO_BACKEND", "ROPE_BACKEND", "ROPE_BACKEND=nonesuch");
    PROBE(1, "open", "-", "nonesuch", "cpu", "ROPE_BACKEND=nonesuch,other");
    PROBE(1, "open", ",", "a name is empty", "allowed is auto, cpu", "ROPE_VERBOSE=0");
    PROBE(1, "open", "CPU", "ROPE_ERROR_NO_BACKEND", "CPU", "ROPE_VERBOSE=0");
    PROBE(1, "open", "nonesuch", beside("no libropekit_nonesuch.so in ", "/plugin"), "allowed is",
          PLUGINS);
    PROBE(1, "open", "nonesuch", "ROPE_PLUGIN_PATH", "cpu", "ROPE_VERBOSE=0");
}

TEST(registry, cpu_isa_only_lowers) {
    PROBE(0, "kernels", "cpu", "scalar", "reference", "ROPE_CPU_ISA=scalar");
    CHECK(!strstr(output, "avx") && !strstr(output, "neon"), "not lowered: %s", output);
    PROBE(0, "rotate", "cpu", "cpu:scalar 0.540302 0.841471", "", "ROPE_CPU_ISA=scalar");
    PROBE(0, "kernels", "cpu", "scalar", "", "ROPE_VERBOSE=0");
    char all[sizeof output];
    memcpy(all, output, sizeof all);
    PROBE(0, "kernels", "cpu", "scalar", "", "ROPE_CPU_ISA=");
    CHECK(strcmp(all, output) == 0, "an empty ROPE_CPU_ISA changes the kernels: %s", output);
}

TEST(registry, an_unknown_cpu_isa_is_an_error) {
    PROBE(1, "open", "cpu", "ROPE_CPU_ISA", "avx9000", "ROPE_CPU_ISA=avx9000");
    PROBE(1, "plan", "cpu", "ROPE_ERROR_INVALID_VALUE", "avx9000", "ROPE_CPU_ISA=avx9000");
#if defined(__x86_64__)
    PROBE(1, "plan", "cpu", "neon", "avx512_bf16", "ROPE_CPU_ISA=neon");
#elif defined(__aarch64__)
    PROBE(1, "plan", "cpu", "avx2", "scalar or neon", "ROPE_CPU_ISA=avx2");
#endif
}

TEST(registry, a_cpu_stream_that_is_no_size_is_an_error) {
    PROBE(0, "rotate", "cpu", "0.540302 0.841471", "", "ROPE_CPU_STREAM=0");
    PROBE(1, "open", "cpu", "ROPE_CPU_STREAM", "-1", "ROPE_CPU_STREAM=-1");
    PROBE(1, "open", "cpu", "ROPE_CPU_STREAM", "4k", "ROPE_CPU_STREAM=4k");
    PROBE(1, "open", "cpu", "0 or more", "", "ROPE_CPU_STREAM=99999999999999999999");
}

/* One that decides nothing is told once, in the log of whoever asked for one. */
TEST(registry, an_unknown_verbosity_is_told_once) {
    static const char text[] = "1 ROPE_VERBOSE is \"zzz\"; allowed is 0";
    PROBE(0, "plan", "cpu", text, "cpu:", "ROPE_VERBOSE=zzz");
    CHECK(!strstr(strstr(output, text) + 1, text), "told twice: %s", output);
    PROBE(0, "plan", "cpu", "1 plan", "cpu:", "ROPE_VERBOSE=1");
    PROBE(0, "plan", "cpu", "cpu:", "", "ROPE_VERBOSE=");
    CHECK(!strstr(output, "ROPE_VERBOSE"), "empty is given: %s", output);
}

/* Every variable, what it selects and its error; a plugin's once that is opened. */
TEST(registry, variables_say_what_they_select) {
    PROBE(0, "variables", "loud",
          "ROPE_BACKEND|nonesuch,cpu|backend of plans and devices that name none: cpu||",
          "ROPE_CPU_ISA||", "ROPE_BACKEND=nonesuch,cpu", PLUGINS);
    CHECK(strstr(output, "ROPE_LOUD||how loud||"), "no variable of the plugin: %s", output);
    PROBE(0, "variables", "cpu", "ROPE_CPU_STREAM|x|", "allowed is a number of bytes",
          "ROPE_CPU_STREAM=x", PLUGINS);
    CHECK(!strstr(output, "LOUD"), "a variable of a plugin that is not opened: %s", output);
    PROBE(0, "variables", "cpu",
          "ROPE_VERBOSE|zzz|lines of the log|ROPE_VERBOSE is \"zzz\"; allowed is",
          "ROPE_PLUGIN_PATH|a:/b|", "ROPE_VERBOSE=zzz", "ROPE_PLUGIN_PATH=a:/b");
    PROBE(0, "variables", "loud", "ROPE_LOUD|very|how loud|ROPE_LOUD is \"very\"; allowed is 1|",
          "", "ROPE_LOUD=very", PLUGINS);
}

TEST(registry, a_plugin_is_found_and_used) {
    PROBE(0, "list", NULL, beside("test|ROPE_OK|1|", "/plugin/libropekit_test.so|"), "cpu|",
          PLUGINS);
    PROBE(0, "open", "test", "ok test", "", PLUGINS);
    PROBE(0, "open", "-", "ok test", "", PLUGINS, "ROPE_BACKEND=test,cpu");
    PROBE(0, "kernels", "test", "plain", "", PLUGINS);
    PROBE(0, "rotate", "test", "test:plain 0.540302 0.841471", "", PLUGINS);
}

/* The library knows operations by what a plan brings along: this one is the plugin's and the
 * probe's alone. */
TEST(registry, an_operation_of_a_plugin) {
    PROBE(
        0, "gather", "test",
        "test:by row abcd, timed abcd, workspace 2, class 1, rope_apply: ROPE_ERROR_INVALID_VALUE, "
        "bound 1",
        "wide: ROPE_ERROR_UNSUPPORTED (every kernel declined: test:by row row_bytes is 1000; "
        "allowed is at most 256), bound 0, released 2",
        PLUGINS);
    PROBE(1, "gather", "cpu", "ROPE_ERROR_UNSUPPORTED",
          "backend cpu has no kernel for the operation gather", PLUGINS);
}

/* A plugin that was built for another version of an operation loads, and serves the others. */
TEST(registry, an_operation_of_another_version) {
    PROBE(0, "list", NULL, beside("older|ROPE_OK|1|", "/plugin/libropekit_older.so|"), "cpu|",
          PLUGINS);
    PROBE(1, "rotate", "older", "ROPE_ERROR_UNSUPPORTED",
          "declined: built for version 0 of rope; allowed is 1", PLUGINS);
    PROBE(0, "gather", "older", "older:by row abcd", "", PLUGINS);
}

/* One whose structs of backend.h are those of the day when the ABI's version began. */
TEST(registry, a_plugin_from_before_later_operations) {
    PROBE(0, "gather", "frozen",
          "frozen:by page abcd, timed abcd, workspace 0, class 2, rope_apply: "
          "ROPE_ERROR_INVALID_VALUE, bound 1",
          "wide: ROPE_ERROR_UNSUPPORTED (every kernel declined: frozen:by page rows are wide), "
          "bound 0, released 2",
          PLUGINS);
    PROBE(0, "list", NULL, beside("frozen|ROPE_OK|1|", "/plugin/libropekit_frozen.so|"), "cpu|",
          PLUGINS);
    PROBE(1, "rotate", "frozen", "backend frozen has no kernel for the operation rope", "",
          PLUGINS);
    PROBE(0, "variables", "frozen",
          "ROPE_FROZEN|off|nothing|ROPE_FROZEN is \"off\"; allowed is on|", "", PLUGINS,
          "ROPE_FROZEN=off");
}

TEST(registry, priority_decides_auto) {
    PROBE(0, "list", NULL, "absent|", "test|", PLUGINS);
    const char *absent = strstr(output, "absent|"), *cpu = strstr(output, "cpu|"),
               *test = strstr(output, "test|");
    CHECK(absent < cpu && cpu < test, "order of auto: %s", output);
    PROBE(0, "open", "auto", "ok cpu", "", PLUGINS);
    PROBE(0, "open", "auto,test", "ok cpu", "", PLUGINS); /* in a list too */
    PROBE(0, "open", "nonesuch,auto", "ok cpu", "", PLUGINS);
}

TEST(registry, broken_plugins_say_why) {
    PROBE(0, "list", NULL, "abi|ROPE_ERROR_NO_BACKEND|0|", "ABI 99", PLUGINS);
    PROBE(0, "list", NULL, "short|ROPE_ERROR_NO_BACKEND|0|", "rope_backend of 8 bytes", PLUGINS);
    PROBE(0, "list", NULL, "bare|ROPE_ERROR_NO_BACKEND|0|", "rope_backend_entry", PLUGINS);
    PROBE(0, "list", NULL, "text|ROPE_ERROR_NO_BACKEND|0|", "libropekit_text.so", PLUGINS);
    PROBE(0, "list", NULL, "absent|ROPE_ERROR_NO_DEVICE|0|", "never has a device", PLUGINS);
    PROBE(1, "open", "abi", "ROPE_ERROR_NO_BACKEND", "ABI 99", PLUGINS);
    PROBE(1, "open", "text", "ROPE_ERROR_NO_BACKEND", "libropekit_text.so", PLUGINS);
    PROBE(1, "open", "absent", "ROPE_ERROR_NO_DEVICE", "never has a device", PLUGINS);
    PROBE(0, "open", "absent,abi,cpu", "ok cpu", "", PLUGINS);
}

/* What the choice cannot reach is not opened: not behind the first that is usable, not beside it.
 */
TEST(registry, only_what_is_asked_for_is_opened) {
    static const char loud[] = "the loud plugin is loaded";
    PROBE(0, "open", "loud", loud, "ok loud", PLUGINS);
    PROBE(0, "list", NULL, loud, "loud|ROPE_OK", PLUGINS);
    PROBE(0, "open", "cpu", "ok cpu", "", PLUGINS);
    CHECK(!strstr(output, loud), "opened for cpu: %s", output);
    PROBE(0, "open", "-", "ok cpu", "", PLUGINS, "ROPE_BACKEND=cpu,loud");
    CHECK(!strstr(output, loud), "opened behind cpu: %s", output);
}

TEST(registry, many_threads_open_a_plugin_once) {
    static const char loud[] = "the loud plugin is loaded";
    PROBE(0, "threads", "loud,cpu", loud, "opened by 8", PLUGINS);
    CHECK(!strstr(strstr(output, loud) + 1, loud), "opened twice: %s", output);
}

/* ROPE_TUNING with a table that names one kernel of the plugin for every call. */
static const char *table_of(const char *kernel) {
    static char variable[64];
    static const char name[] = "ROPE_TUNING=/tmp/ropekit_table_XXXXXX";
    memcpy(variable, name, sizeof name);
    char *path = strchr(variable, '/');
    const int file = mkstemp(path);
    CHECK(file >= 0, "no file %s", path);
    dprintf(file,
            "{\"points\": [{\"operation\": \"attention\", \"bits\": 32, \"head_dim\": 2, "
            "\"mask\": \"causal\", \"cache\": \"none\", \"batch\": 1, \"tokens\": 1, "
            "\"q_heads\": 1, \"k_heads\": 1, \"kernel\": \"%s\"}]}",
            kernel);
    close(file);
    return variable;
}

/* A call that a table's kernel does not take, or that it has no or too much workspace for, is left
 * to the first; why one cannot be bound is told. */
TEST(registry, kernels_of_a_table_that_fail) {
    const char *variable = table_of("attention:picky");
    PROBE(0, "attend", "attention", "attention:first,attention:picky 1", "", PLUGINS, variable);
    unlink(strchr(variable, '/'));
    variable = table_of("attention:greedy");
    PROBE(0, "attend", "attention", "attention:first,attention:greedy 1", "", PLUGINS, variable);
    unlink(strchr(variable, '/'));
    variable = table_of("attention:hungry");
    PROBE(0, "attend", "attention", "attention:first,attention:hungry 1", "", PLUGINS, variable);
    unlink(strchr(variable, '/'));
    variable = table_of("attention:broken");
    PROBE(1, "attend", "attention", "ROPE_ERROR_OUT_OF_MEMORY: attention:broken: no memory for it",
          "", PLUGINS, variable);
    unlink(strchr(variable, '/'));
    PROBE(1, "attend", "attention", "ROPE_TUNING is \"/none\"", "", PLUGINS, "ROPE_TUNING=/none");
}

/* A call that a kernel of decode does not take is composed, unless the kernel was named. */
TEST(registry, kernels_that_compose_a_decode) {
    PROBE(0, "decode", "attention",
          "attention:single: attention:single 2\n"
          "attention:first 1\n"
          "attention:single: attention:single 2\n"
          " ROPE_ERROR_UNSUPPORTED: single takes one token\n"
          "attention:composed: attention:first 1\n"
          "attention:first 1\n"
          "attention:composed: attention:first 1\n"
          "attention:first 1\n",
          "", PLUGINS);
}

enum { FOLDER_SIZE = 32 };

/* A folder of its own, for one file that poses as a plugin. */
static void make_folder(char path[FOLDER_SIZE]) {
    strcpy(path, "/tmp/ropekit_plugin_XXXXXX");
    CHECK(mkdtemp(path), "no folder: %s", strerror(errno));
}

static const char *in_folder(const char *path) {
    static char text[sizeof(((struct sockaddr_un *)0)->sun_path)];
    snprintf(text, sizeof text, "%s/libropekit_odd.so", path);
    return text;
}

/* Neither listing nor naming it blocks or ends the process; the reason is told. */
static void check_odd(const char *path, const char *reason) {
    char variable[160];
    snprintf(variable, sizeof variable, "ROPE_PLUGIN_PATH=%s", path);
    PROBE(0, "list", NULL, "odd|ROPE_ERROR_NO_BACKEND|0|", reason, variable);
    PROBE(1, "open", "odd", "ROPE_ERROR_NO_BACKEND", reason, variable);
    PROBE(0, "open", "odd,cpu", "ok cpu", "", variable);
    CHECK(remove(in_folder(path)) == 0, "%s: %s", in_folder(path), strerror(errno));
}

TEST(registry, what_is_no_regular_file_is_not_opened) {
    char path[FOLDER_SIZE];
    make_folder(path);
    CHECK(mkfifo(in_folder(path), 0600) == 0, "no FIFO");
    check_odd(path, "no regular file");
    CHECK(mkdir(in_folder(path), 0700) == 0, "no directory");
    check_odd(path, "no regular file");
    CHECK(symlink("/dev/zero", in_folder(path)) == 0, "no link");
    check_odd(path, "no regular file");
    CHECK(symlink("/nonexistent", in_folder(path)) == 0, "no link");
    check_odd(path, "No such file");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, in_folder(path));
    int made = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(made, (struct sockaddr *)&address, sizeof address) == 0, "no socket");
    check_odd(path, "no regular file");
    close(made);
    rmdir(path);
}

static size_t read_file(const char *path, char **bytes) {
    FILE *file = fopen(path, "rb");
    CHECK(file, "%s: %s", path, strerror(errno));
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    *bytes = malloc((size_t)size);
    CHECK(*bytes && fread(*bytes, 1, (size_t)size, file) == (size_t)size, "%s", path);
    fclose(file);
    return (size_t)size;
}

static void write_file(const char *path, const char *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    CHECK(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0, "%s", path);
}

/* Segments that reach beyond the file, or wrap around 2^64. */
static void break_each_segment(const char *path, char *bytes, size_t size) {
    const ElfW(Ehdr) *header = (const void *)bytes;
    ElfW(Phdr) *segment = (void *)(bytes + header->e_phoff);
    for (int i = 0; i < header->e_phnum; i++) {
        const ElfW(Phdr) whole = segment[i];
        if (whole.p_type != PT_LOAD && whole.p_type != PT_DYNAMIC)
            continue;
        segment[i].p_offset = (size_t)-4096 + whole.p_offset % 4096;
        write_file(in_folder(path), bytes, size);
        check_odd(path, whole.p_type == PT_LOAD ? "truncated" : "damaged");
        segment[i] = whole;
        segment[i].p_vaddr += (size_t)1 << 40;
        write_file(in_folder(path), bytes, size);
        check_odd(path, "damaged");
        segment[i] = whole;
    }
}

/* Every length but the whole is refused before the dynamic linker touches missing pages. */
TEST(registry, a_truncated_plugin_says_so) {
    char path[FOLDER_SIZE], *bytes;
    make_folder(path);
    size_t size = read_file(beside("", "/plugin/libropekit_test.so"), &bytes);
    write_file(in_folder(path), bytes, 0);
    check_odd(path, "too short");
    for (int percent = 1; percent < 100; percent += 7) {
        write_file(in_folder(path), bytes, size * (size_t)percent / 100);
        check_odd(path, "truncated");
    }
    write_file(in_folder(path), bytes, size - 1);
    check_odd(path, "truncated");
    for (size_t thirds = 1; thirds < 3; thirds++) { /* in full length, and not written to its end */
        write_file(in_folder(path), bytes, size * thirds / 3);
        CHECK(truncate(in_folder(path), (off_t)size) == 0, "%s", in_folder(path));
        check_odd(path, "damaged");
    }
    bytes[18] ^= 0x40; /* e_machine */
    write_file(in_folder(path), bytes, size);
    check_odd(path, "another processor");
    bytes[18] ^= 0x40;
    bytes[4] ^= 3; /* 32 bits in place of 64 */
    write_file(in_folder(path), bytes, size);
    check_odd(path, "another word size");
    bytes[4] ^= 3;
    break_each_segment(path, bytes, size);
    free(bytes);
    rmdir(path);
}

/* Only absolute directories: a plugin is never taken from where a program happens to run. */
TEST(registry, relative_plugin_paths_are_ignored) {
    PROBE(0, "list", NULL, "cpu|", "", "ROPE_PLUGIN_PATH=.:plugin:/nonexistent::");
    CHECK(!strstr(output, "test|"), "a plugin came from a relative path: %s", output);
    PROBE(1, "open", "test",
          "no libropekit_test.so in plugin (not absolute: skipped), /nonexistent (no directory", "",
          "ROPE_PLUGIN_PATH=plugin:/nonexistent");
}
