#include "bench/commands.h"
#include "bench/message.h"
#include "bench/options.h"
#include "bench/record.h"
#include "bench/variables.h"

#include <string.h>

typedef struct command {
    const char *name;
    int32_t bit;
    int (*run)(options *o);
    const char *help;
} command;

static const command commands[] = {
    {"info", COMMAND_INFO, command_info, "backends, devices and the kernel each would choose"},
    {"verify", COMMAND_VERIFY, command_verify, "one descriptor against the oracle"},
    {"accuracy", COMMAND_ACCURACY, command_accuracy, "errors by position and by angle mode"},
    {"bench", COMMAND_BENCH, command_bench, "times a descriptor or a suite beside a copy"},
    {"demo", COMMAND_DEMO, command_demo, "rotates q and k of a model's prefill and decode step"},
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
    fputs("\nropekit COMMAND --help lists its options; ropekit --version prints the version.\n"
          "Exit status: 0 done, 1 a check failed or bench was interrupted, 2 bad usage or "
          "environment.\n",
          file);
}

/* The status, unless what was printed could not be. */
static int printed(int status) {
    return fflush(stdout) != 0 && status == EXIT_OK ? EXIT_ENVIRONMENT : status;
}

static int run(const command *chosen, int argc, char **argv) {
    pool owned = {0};
    options o = {.command = chosen->bit, .pool = &owned};
    int status = EXIT_ENVIRONMENT;
    char program[32];
    snprintf(program, sizeof program, "ropekit %s", chosen->name);
    argv[0] = program;
    if (options_parse(&o, argc, argv)) {
        if (o.help) {
            printf("usage: ropekit %s [OPTION]...\n%s.\n\n", chosen->name, chosen->help);
            options_help(stdout, chosen->bit);
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

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    const command *chosen = find_command(name);
    if (chosen)
        return run(chosen, argc - 1, argv + 1);
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
