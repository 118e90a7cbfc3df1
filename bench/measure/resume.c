#include "bench/measure/resume.h"

#include "bench/output/message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static cJSON *read_document(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file)
        return NULL;
    cJSON *document = NULL;
    long size = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    char *text = size >= 0 ? malloc((size_t)size + 1) : NULL;
    rewind(file);
    if (text && fread(text, 1, (size_t)size, file) == (size_t)size)
        document = cJSON_ParseWithLength(text, (size_t)size);
    free(text);
    fclose(file);
    return document;
}

/* A member of a document or of one of its objects. */
static const cJSON *member(const cJSON *document, const char *object, const char *name) {
    return cJSON_GetObjectItem(object ? cJSON_GetObjectItem(document, object) : document, name);
}

/* Whether both documents come from one device, build and way of measuring. */
static bool agree(const cJSON *old, const cJSON *new, const char *path) {
    static const char *const facts[][2] = {
        {NULL, "schema"},      {NULL, "version"},    {NULL, "command"},     {NULL, "seed"},
        {NULL, "quick"},       {NULL, "rounds"},     {"build", "library"},  {"build", "commit"},
        {"build", "compiler"}, {"host", "threads"},  {"device", "backend"}, {"device", "name"},
        {"host", "cpu"},       {"device", "driver"}, {"host", "settings"},
    };
    for (size_t i = 0; i < sizeof facts / sizeof facts[0]; i++) {
        const cJSON *of_old = member(old, facts[i][0], facts[i][1]);
        const cJSON *of_new = member(new, facts[i][0], facts[i][1]);
        if ((!of_old && !of_new) || cJSON_Compare(of_old, of_new, true))
            continue;
        char *is = of_old ? cJSON_PrintUnformatted(of_old) : NULL;
        char *must = of_new ? cJSON_PrintUnformatted(of_new) : NULL;
        message("--resume: %s of \"%s\" is %s; allowed is %s", facts[i][1], path,
                is ? is : "missing", must ? must : "none");
        cJSON_free(is);
        cJSON_free(must);
        return false;
    }
    return true;
}

bool resume_read(record_list *list, const options *o) {
    if (!o->output) {
        message("--resume is given without --output; allowed is with it");
        return false;
    }
    errno = 0;
    cJSON *old = read_document(o->output);
    if (!old && errno == ENOENT)
        return true;
    if (!old) {
        message("--output is \"%s\"; allowed with --resume is a file of results", o->output);
        return false;
    }
    bool same = agree(old, list->document, o->output);
    cJSON *records = cJSON_GetObjectItem(old, "records");
    for (cJSON *r = records ? records->child : NULL; r && same; r = records->child) {
        cJSON_DetachItemViaPointer(records, r);
        if (cJSON_HasObjectItem(r, "refused"))
            cJSON_Delete(r);
        else
            cJSON_AddItemToArray(list->records, r);
    }
    cJSON *suites = cJSON_GetObjectItem(old, "suites");
    for (const cJSON *s = suites ? suites->child : NULL; s && same; s = s->next)
        record_suite(list, s->string, cJSON_IsTrue(s));
    cJSON_Delete(old);
    return same;
}

static bool is_text(const cJSON *record, const char *name, const char *text) {
    const char *value = cJSON_GetStringValue(cJSON_GetObjectItem(record, name));
    return value && strcmp(value, text) == 0;
}

bool resume_holds(const record_list *list, const char *suite, const char *name, const char *value) {
    for (const cJSON *r = list->records->child; r; r = r->next)
        if (is_text(r, "suite", suite) && is_text(r, name, value))
            return true;
    return false;
}
