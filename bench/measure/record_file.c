#include "bench/measure/record.h"
#include "bench/output/message.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Longest name of a file. */
#define PATH_BYTES 4096

/* Writes a document, one record a line. */
static bool write_document(const record_list *list, FILE *file) {
    cJSON *records = cJSON_DetachItemViaPointer(list->document, list->records);
    char *head = cJSON_Print(list->document);
    bool written = head != NULL;
    if (head)
        fprintf(file, "%.*s,\n\t\"records\":\t[", (int)strlen(head) - 2, head);
    for (const cJSON *r = records->child; r && written; r = r->next) {
        char *line = cJSON_PrintUnformatted(r);
        written = line && fprintf(file, "\n%s%s", line, r->next ? "," : "") > 0;
        cJSON_free(line);
    }
    cJSON_free(head);
    cJSON_AddItemToObject(list->document, "records", records);
    return fputs("\n]}\n", file) >= 0 && written;
}

static bool refuse_output(const options *o, int error) {
    message("--output is \"%s\": %s; allowed is a file that can be written", o->output,
            strerror(error));
    return false;
}

/* What is written, and replaces --output when it is whole. */
static void name_part(const options *o, char part[PATH_BYTES]) {
    snprintf(part, PATH_BYTES, "%s.part", o->output);
}

bool record_check_output(const options *o) {
    char part[PATH_BYTES];
    struct stat there;
    if (!o->output)
        return true;
    if (!*o->output)
        return refuse_output(o, ENOENT);
    if (stat(o->output, &there) == 0 && !S_ISREG(there.st_mode))
        return refuse_output(o, S_ISDIR(there.st_mode) ? EISDIR : ENOTSUP);
    name_part(o, part);
    const int file = open(part, O_WRONLY | O_CREAT, 0666);
    if (file < 0 || close(file) != 0 || unlink(part) != 0)
        return refuse_output(o, errno);
    return true;
}

bool record_save(const record_list *list, const options *o) {
    char part[PATH_BYTES];
    if (!o->output)
        return true;
    name_part(o, part);
    FILE *file = fopen(part, "w");
    bool written = file && write_document(list, file) && fflush(file) == 0;
    int error = errno;
    if (file && fclose(file) != 0)
        written = false;
    if (written && rename(part, o->output) == 0)
        return true;
    error = written ? errno : error;
    if (file)
        unlink(part);
    return refuse_output(o, error);
}

bool record_end(record_list *list, const options *o, bool done) {
    done = done && record_save(list, o) &&
           (!o->json || (write_document(list, stdout) && text_flush(stdout)));
    cJSON_Delete(list->document);
    return done;
}
