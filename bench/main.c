#include "bench/commands/commands.h"
#include "bench/commands/completion.h"
#include "bench/commands/variables.h"
#include "bench/measure/record.h"
#include "bench/options/options.h"
#include "bench/output/message.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

typedef struct command {
    const char *name;
    int32_t bit;
    int (*run)(options *o);
    const char *help;
} command;

static const command commands[] = {
    {"info", COMMAND_INFO, command_info,
     "backends, devices and what each kernel says of a descriptor"},
    {"verify", COMMAND_VERIFY, command_verify, "one descriptor against the oracle"},
    {"bench", COMMAND_BENCH, command_bench, "times a descriptor or a suite beside a copy"},
    {"demo", COMMAND_DEMO, command_demo, "rotates q and k of a model's prefill and decode step"},
    {"tune", COMMAND_TUNE, command_tune, "writes which kernel of attention is fastest where"},
};
static const size_t command_count = sizeof commands / sizeof commands[0];

static const command *find_command(const char *name) {
    for (size_t i = 0; i < command_count; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

static void print_usage(FILE *file) {
    fputs("usage: ropekit COMMAND [OPTION]...\n\n", file);
    for (size_t i = 0; i < command_count; i++)
        fprintf(file, "  %-10s %s\n", commands[i].name, commands[i].help);
    fputs("\nropekit help COMMAND lists its options; ropekit --version prints the version.\n"
          "Exit status: 0 done, 1 a check failed, 2 bad usage,\n"
          "bad environment, nothing to check, or output that cannot be written.\n",
          file);
}

/* The status, unless what was printed could not be. */
static int printed(int status) {
    return text_flush(stdout) ? status : EXIT_ENVIRONMENT;
}

/* Without a standard stream the next file that is opened would stand in for it. A pipe that nobody
 * reads and a file that may not grow are errors like any other. */
static bool open_streams(void) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    for (int stream = 0; stream <= 2; stream++)
        if (fcntl(stream, F_GETFD) < 0 && stream != STDOUT_FILENO)
            (void)!open("/dev/null", O_RDWR);
    if (fcntl(STDOUT_FILENO, F_GETFD) >= 0)
        return true;
    message("standard output is closed; allowed is a file, a pipe or /dev/null");
    return false;
}

static void print_help(const command *chosen) {
    printf("usage: ropekit %s [OPTION]...\n%s.\n\n", chosen->name, chosen->help);
    options_help(stdout, chosen->bit);
}

/* What the shells' completion asks: commands, or the options of one. */
static void print_words(const command *chosen) {
    if (chosen)
        completion_words(stdout, chosen->bit);
    for (size_t i = 0; !chosen && i < command_count; i++)
        puts(commands[i].name);
    if (!chosen)
        puts("help");
}

static int run(const command *chosen, int argc, char **argv) {
    pool owned = {0};
    options o = {.command = chosen->bit, .pool = &owned};
    int status = EXIT_ENVIRONMENT;
    if (options_parse(&o, argc, argv)) {
        if (o.help) {
            print_help(chosen);
            status = EXIT_OK;
        } else if (record_check_output(&o)) {
            bool usable = variables_check(&o);
            if (usable || chosen->bit == COMMAND_INFO)
                status = chosen->run(&o);
            if (!usable)
                status = EXIT_ENVIRONMENT;
            variables_warn();
        }
    }
    pool_release(&owned);
    return printed(status);
}

/* ropekit help [COMMAND], and ropekit words [COMMAND] for completion. */
static int describe(const char *what, int argc, char **argv) {
    const char *name = argc > 2 ? argv[2] : "help";
    const command *chosen = find_command(name);
    if (argc > 3 || (!chosen && strcmp(name, "help") != 0)) {
        char names[128] = "";
        for (size_t i = 0, used = 0; i < command_count; i++)
            used += (size_t)snprintf(names + used, sizeof names - used, ", %s", commands[i].name);
        message("%s of \"%.60s\"; allowed is one command: help%s", what, argv[argc > 3 ? 3 : 2],
                names);
        return EXIT_ENVIRONMENT;
    }
    if (strcmp(what, "words") == 0)
        print_words(chosen);
    else if (chosen)
        print_help(chosen);
    else
        print_usage(stdout);
    return printed(EXIT_OK);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    const command *chosen = find_command(name);
    if (!open_streams())
        return EXIT_ENVIRONMENT;
    if (chosen)
        return run(chosen, argc - 1, argv + 1);
    if (strcmp(name, "help") == 0 || strcmp(name, "words") == 0)
        return describe(name, argc, argv);
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        print_usage(stdout);
        return printed(EXIT_OK);
    }
    if (strcmp(name, "--version") == 0) {
        printf("ropekit %s\n", rope_version());
        return printed(EXIT_OK);
    }
    if (argc > 1)
        message("\"%s\" is no command", name);
    print_usage(stderr);
    return EXIT_ENVIRONMENT;
}
