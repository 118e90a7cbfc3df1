#include "bench/commands/completion.h"

#include "bench/measure/suites.h"
#include "bench/options/config_file.h"
#include "bench/options/option_fields.h"
#include "bench/options/options.h"

#include <string.h>

static void print_words(FILE *file, const option_field *field) {
    fprintf(file, "--%s%s\n", field->name, field->kind == OPTION_FLAG ? "" : "=");
    if (field->offset == offsetof(options, suite))
        for (int32_t i = 0; suite_name(i); i++)
            fprintf(file, "--%s=%s\n", field->name, suite_name(i));
    if (field->offset == offsetof(options, config))
        config_file_list(file, field->name);
    if (field->kind != OPTION_CHOICE && field->kind != OPTION_DTYPE)
        return;
    for (const char *name = field->values; *name; name += strcspn(name, "|"), name += *name == '|')
        fprintf(file, "--%s=%.*s\n", field->name, (int)strcspn(name, "|"), name);
}

void completion_words(FILE *file, int32_t command) {
    for (int32_t i = 0; i < option_field_count; i++)
        if (option_fields[i].commands & command)
            print_words(file, &option_fields[i]);
}
