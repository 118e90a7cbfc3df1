/*
 * A plugin as it was built on the day when backend ABI 2 began: its declarations are a copy, never
 * brought up to date, of what backend.h had then. It serves the gather operation of gather.h and no
 * other, so whatever the library learns later, it must load and run.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int32_t status;

typedef struct candidate {
    const char *operation;
    int32_t version, numerics;
    const char *name;
    const void *data;
    int32_t on_request;
    status (*query)(const struct candidate *self, const void *problem, int32_t device,
                    char *reason);
    status (*bind)(const struct candidate *self, const void *problem, int32_t device, void **kernel,
                   char *reason);
    status (*workspace)(const void *problem, const void *kernel, const void *bounds, size_t *bytes);
    status (*run)(const void *problem, const void *kernel, const void *call, void *workspace,
                  void *stream);
    void (*release)(void *kernel);
} candidate;

typedef struct candidate_list {
    size_t candidate_size;
    const candidate *candidates;
    int32_t count;
} candidate_list;

typedef status (*iteration)(void *state, int64_t index, void *stream);

typedef struct setting {
    const char *name, *selects, *allowed;
    int (*is_valid)(const char *value);
} setting;

typedef struct backend {
    uint32_t abi;
    int32_t priority;
    size_t struct_size;
    const char *name;
    const candidate_list *const *lists;
    int32_t list_count;
    const setting *settings;
    int32_t setting_count;
    status (*device_count)(int32_t *count, char *reason);
    status (*device_info)(int32_t device, void *info);
    status (*alloc)(int32_t device, size_t bytes, void **pointer);
    status (*free)(int32_t device, void *pointer);
    status (*copy_in)(int32_t device, void *target, const void *source, size_t bytes);
    status (*copy_out)(int32_t device, void *target, const void *source, size_t bytes);
    status (*synchronize)(int32_t device);
    status (*time)(int32_t device, int32_t graph, int64_t iterations, iteration run, void *state,
                   double *seconds, double *host_seconds);
} backend;

typedef struct host {
    uint32_t abi;
    status (*fail)(status code, const char *format, ...);
} host;

enum { ABI = 2, REASON_SIZE = 160, DECLINED = -1, BOUNDED = 2, GATHER_VERSION = 3 };

typedef struct problem {
    int32_t row_bytes, page_rows;
    int32_t *bound;
} problem;

typedef struct call {
    const void *const *pages;
    const int64_t *slots;
    int64_t rows;
    void *out;
} call;

static status query(const candidate *self, const void *given, int32_t device, char *reason) {
    const problem *p = given;
    (void)device;
    if (!p || p->row_bytes <= *(const int32_t *)self->data)
        return 0;
    snprintf(reason, REASON_SIZE, "rows are wide");
    return DECLINED;
}

static status bind(const candidate *self, const void *given, int32_t device, void **kernel,
                   char *reason) {
    (void)self, (void)device, (void)reason;
    *kernel = ((const problem *)given)->bound;
    ++*(int32_t *)*kernel;
    return 0;
}

static void release(void *kernel) {
    --*(int32_t *)kernel;
}

static status run(const void *given, const void *kernel, const void *arguments, void *workspace,
                  void *stream) {
    const problem *p = given;
    const call *c = arguments;
    (void)kernel, (void)workspace, (void)stream;
    for (int64_t i = 0; i < c->rows; i++)
        memcpy((char *)c->out + i * p->row_bytes,
               (const char *)c->pages[c->slots[i] / p->page_rows] +
                   c->slots[i] % p->page_rows * p->row_bytes,
               (size_t)p->row_bytes);
    return 0;
}

static status device_count(int32_t *count, char *reason) {
    (void)reason;
    *count = 1;
    return 0;
}

static status device_info(int32_t device, void *info) {
    (void)device, (void)info;
    return 0;
}

static status time_iterations(int32_t device, int32_t graph, int64_t iterations, iteration each,
                              void *state, double *seconds, double *host_seconds) {
    status status = 0;
    (void)device, (void)graph;
    for (int64_t i = 0; i < iterations && status == 0; i++)
        status = each(state, i, NULL);
    *seconds = *host_seconds = 1;
    return status;
}

static int is_on(const char *value) {
    return strcmp(value, "on") == 0;
}

static const int32_t widest_row = 16;
static const candidate candidates[] = {{.operation = "gather",
                                        .version = GATHER_VERSION,
                                        .numerics = BOUNDED,
                                        .name = "by page",
                                        .data = &widest_row,
                                        .query = query,
                                        .bind = bind,
                                        .run = run,
                                        .release = release}};
static const candidate_list list = {sizeof(candidate), candidates, 1};
static const candidate_list *const lists[] = {&list};
static const setting settings[] = {{"ROPE_FROZEN", "nothing", "on", is_on}};
static const backend self = {.abi = ABI,
                             .priority = -8,
                             .struct_size = sizeof self,
                             .name = "frozen",
                             .lists = lists,
                             .list_count = 1,
                             .settings = settings,
                             .setting_count = 1,
                             .device_count = device_count,
                             .device_info = device_info,
                             .time = time_iterations};

__attribute__((visibility("default"))) const backend *rope_backend_entry(const host *given);

const backend *rope_backend_entry(const host *given) {
    return given->abi == ABI ? &self : NULL;
}
