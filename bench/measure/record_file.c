#include "bench/measure/environment.h"
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

/* Whether a path is written as it is: a device, a pipe, a socket, or a name of an open file. */
static bool is_stream(const char *path) {
    struct stat there;
    bool opened = strncmp(path, "/dev/", 5) == 0 || strncmp(path, "/proc/", 6) == 0;
    return (opened ? lstat : stat)(path, &there) == 0 && !S_ISREG(there.st_mode);
}

/* The file that is written: a stream itself, else one that replaces --output when it is whole. */
static bool name_scratch(const options *o, char scratch[PATH_BYTES]) {
    bool stream = is_stream(o->output);
    snprintf(scratch, PATH_BYTES, stream ? "%s" : "%s.part", o->output);
    return stream;
}

static bool refuse_output(const options *o, int error) {
    message("--output is \"%s\": %s", o->output, strerror(error));
    return false;
}

static bool is_folder(const char *path) {
    struct stat there;
    return stat(path, &there) == 0 && S_ISDIR(there.st_mode);
}

/* 0 or the error with which a file could not be opened for writing; leaves it as it is. */
static int try_writing(const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0666);
    if (file < 0 && errno == EEXIST)
        return is_folder(path) ? EISDIR : access(path, W_OK) == 0 ? 0 : errno;
    if (file < 0)
        return errno;
    close(file);
    return unlink(path) == 0 ? 0 : errno;
}

bool record_check_output(const options *o) {
    char scratch[PATH_BYTES];
    if (!o->output)
        return true;
    name_scratch(o, scratch);
    int error = !*o->output ? ENOENT : is_folder(o->output) ? EISDIR : try_writing(scratch);
    return !error || refuse_output(o, error);
}

/* Replaces the file at once, so that an interrupted tool leaves a whole one. */
static bool write_output(const record_list *list, const options *o, const char *scratch,
                         bool stream) {
    FILE *file = fopen(scratch, "w");
    bool written = file && write_document(list, file) && fflush(file) == 0 && !ferror(file);
    int error = errno;
    if (file && fclose(file) != 0 && written) {
        written = false;
        error = errno;
    }
    if (written && !stream && rename(scratch, o->output) != 0) {
        written = false;
        error = errno;
    }
    if (!written && file && !stream)
        unlink(scratch);
    return written || refuse_output(o, error);
}

bool record_save(const record_list *list, const options *o) {
    char scratch[PATH_BYTES];
    return !o->output || name_scratch(o, scratch) || write_output(list, o, scratch, false);
}

bool record_end(record_list *list, const options *o, bool done) {
    char scratch[PATH_BYTES];
    cJSON *device = cJSON_GetObjectItem(list->document, "device");
    if (device)
        environment_add_clocks(device, "end");
    if (done && o->output)
        done = write_output(list, o, scratch, name_scratch(o, scratch));
    if (done && o->json)
        done = write_document(list, stdout) && text_flush(stdout);
    cJSON_Delete(list->document);
    return done;
}
