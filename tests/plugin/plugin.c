/*
 * A backend that lives outside the tree: host memory of its own, one kernel for the simplest
 * rotation, and one for an operation that the library has never heard of (gather.h). PLUGIN_NAME
 * names it; PLUGIN_ABI, PLUGIN_SIZE, PLUGIN_DEVICES, PLUGIN_ROPE_VERSION, PLUGIN_LOUD and
 * PLUGIN_ATTENTION make the others.
 */
#include "tests/plugin/gather.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#ifndef PLUGIN_ABI
#define PLUGIN_ABI ROPE_BACKEND_ABI
#endif
#ifndef PLUGIN_SIZE
#define PLUGIN_SIZE sizeof(rope_backend)
#endif
#ifndef PLUGIN_DEVICES
#define PLUGIN_DEVICES 1
#endif
#ifndef PLUGIN_ROPE_VERSION
#define PLUGIN_ROPE_VERSION ROPE_ROPE_VERSION
#endif
#ifndef PLUGIN_PRIORITY
#define PLUGIN_PRIORITY -5
#endif

static const rope_host *host;

#ifdef PLUGIN_LOUD
__attribute__((constructor)) static void shout(void) {
    puts("the loud plugin is loaded");
}

static int is_one(const char *value) {
    return strcmp(value, "1") == 0;
}

static const rope_setting settings[] = {{"ROPE_LOUD", "how loud", "1", is_one}};
#endif

/* The device: its memory is handed out from the start, and taken back when nothing is left. */
enum { MEMORY_BYTES = 1 << 20, ALIGNMENT = 64 };
static _Alignas(ALIGNMENT) unsigned char memory[MEMORY_BYTES];
static size_t used;
static int live;

static int is_own(const void *pointer, size_t bytes) {
    size_t at = (size_t)((const unsigned char *)pointer - memory);
    return at <= MEMORY_BYTES && bytes <= MEMORY_BYTES - at;
}

static rope_status device_count(int32_t *count, char *reason) {
    *count = PLUGIN_DEVICES;
    if (PLUGIN_DEVICES > 0)
        return ROPE_OK;
    snprintf(reason, ROPE_REASON_SIZE, "this backend never has a device");
    return ROPE_ERROR_NO_DEVICE;
}

static rope_status device_info(int32_t device, rope_device_info *info) {
    snprintf(info->name, sizeof info->name, "test device %d", device);
    snprintf(info->features, sizeof info->features, "plain");
    info->memory_bytes = MEMORY_BYTES;
    info->compute_units = 1;
    return ROPE_OK;
}

static rope_status alloc(int32_t device, size_t bytes, void **pointer) {
    if (bytes > MEMORY_BYTES - used)
        return host->fail(ROPE_ERROR_OUT_OF_MEMORY, "bytes is %zu; device %d has %zu left", bytes,
                          device, MEMORY_BYTES - used);
    *pointer = memory + used;
    used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    live++;
    return ROPE_OK;
}

static rope_status release(int32_t device, void *pointer) {
    if (!is_own(pointer, 0))
        return host->fail(ROPE_ERROR_DEVICE, "pointer is %p, no memory of device %d", pointer,
                          device);
    if (--live == 0)
        used = 0;
    return ROPE_OK;
}

static rope_status copy_in(int32_t device, void *target, const void *source, size_t bytes) {
    if (!is_own(target, bytes))
        return host->fail(ROPE_ERROR_DEVICE, "target is %p, no memory of device %d", target,
                          device);
    memcpy(target, source, bytes);
    return ROPE_OK;
}

static rope_status copy_out(int32_t device, void *target, const void *source, size_t bytes) {
    if (!is_own(source, bytes))
        return host->fail(ROPE_ERROR_DEVICE, "source is %p, no memory of device %d", source,
                          device);
    memcpy(target, source, bytes);
    return ROPE_OK;
}

static rope_status synchronize(int32_t device) {
    (void)device;
    return ROPE_OK;
}

static double now(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static rope_status time_iterations(int32_t device, int32_t graph, int64_t iterations,
                                   rope_iteration iteration, void *state, double *seconds,
                                   double *host_seconds) {
    (void)device;
    (void)graph;
    double start = now();
    for (int64_t i = 0; i < iterations; i++) {
        rope_status status = iteration(state, i, NULL);
        if (status != ROPE_OK)
            return status;
    }
    *seconds = *host_seconds = (now() - start) / (double)iterations;
    return ROPE_OK;
}

/* Forward, exact angles, fp32, half-split, one axis, implicit positions. */
static rope_status rope_query(const rope_candidate *self, const void *problem, int32_t device,
                              char *reason) {
    const rope_problem *p = problem;
    (void)self, (void)device;
    if (!p ||
        (p->dtype == ROPE_F32 && p->pairing_in == ROPE_PAIRING_HALF_SPLIT &&
         p->pairing_out == p->pairing_in && p->direction == ROPE_FORWARD &&
         p->angle_mode == ROPE_ANGLE_EXACT && p->arithmetic == ROPE_ARITHMETIC_FP32 &&
         p->axes == 1 && !p->xpos_rate && p->frequency_sets == 1 && p->shard == ROPE_SHARD_NONE))
        return ROPE_OK;
    snprintf(reason, ROPE_REASON_SIZE, "dtype %d, direction %d: only a plain f32 rotation",
             p->dtype, p->direction);
    return ROPE_DECLINED;
}

static void rotate_head(const rope_problem *p, int32_t tensor, int64_t position, const float *in,
                        int64_t in_stride, float *out, int64_t out_stride) {
    int32_t first = p->rotary_offset[tensor];
    for (int32_t i = 0; i < p->head_dim[tensor]; i++)
        if (i < first || i >= first + 2 * p->pairs)
            out[i * out_stride] = in[i * in_stride];
    for (int32_t i = 0; i < p->pairs; i++) {
        double angle = (double)position * p->set[0].omega[i], factor = p->set[0].attention_factor;
        double c = cos(angle) * factor, s = sin(angle) * factor;
        double x1 = in[(first + i) * in_stride], x2 = in[(first + i + p->pairs) * in_stride];
        out[(first + i) * out_stride] = (float)(x1 * c - x2 * s);
        out[(first + i + p->pairs) * out_stride] = (float)(x2 * c + x1 * s);
    }
}

static void rotate_tensor(const rope_problem *p, const rope_call *call, int32_t tensor) {
    const rope_operand *o = &call->tensor[tensor];
    const int64_t *in = o->in_stride, *out = o->out_stride;
    for (int64_t b = 0; b < call->batch; b++)
        for (int64_t t = 0; t < call->tokens; t++)
            for (int64_t h = 0; h < o->heads; h++)
                rotate_head(p, tensor, t + call->position.offset,
                            (const float *)o->in + b * in[0] + t * in[1] + h * in[2], in[3],
                            (float *)o->out + b * out[0] + t * out[1] + h * out[2], out[3]);
}

static rope_status rope_run(const void *problem, const void *kernel, const void *given,
                            void *workspace, void *stream) {
    const rope_call *call = given;
    const rope_position_map *map = &call->position;
    (void)kernel, (void)workspace, (void)stream;
    if (map->ids || map->offsets || map->cu_seqlens)
        return host->fail(ROPE_ERROR_UNSUPPORTED, "position_ids, sequence_offsets and cu_seqlens "
                                                  "must be NULL for the test backend");
    for (int32_t tensor = 0; tensor < 2; tensor++)
        rotate_tensor(problem, call, tensor);
    return ROPE_OK;
}

static rope_status traffic_run(const void *problem, const void *kernel, const void *call,
                               void *workspace, void *stream) {
    const rope_traffic *t = call;
    unsigned char *target = t->target;
    (void)problem, (void)kernel, (void)workspace, (void)stream;
    for (size_t i = 0; !t->source && i < t->bytes; i++)
        target[i] ^= 1;
    if (t->source)
        memcpy(target, t->source, t->bytes);
    return ROPE_OK;
}

static rope_status gather_query(const rope_candidate *self, const void *problem, int32_t device,
                                char *reason) {
    const gather_problem *p = problem;
    (void)self, (void)device;
    if (!p || p->row_bytes <= GATHER_MAX_ROW)
        return ROPE_OK;
    snprintf(reason, ROPE_REASON_SIZE, "row_bytes is %d; allowed is at most %d", p->row_bytes,
             GATHER_MAX_ROW);
    return ROPE_DECLINED;
}

static rope_status gather_bind(const rope_candidate *self, const void *problem, int32_t device,
                               void **kernel, char *reason) {
    (void)self, (void)device, (void)reason;
    *kernel = ((const gather_problem *)problem)->bound;
    ++*(int32_t *)*kernel;
    return ROPE_OK;
}

static void gather_release(void *kernel) {
    --*(int32_t *)kernel;
}

/* One row, on its way from its page to the output. */
static rope_status gather_workspace(const void *problem, const void *kernel, const void *bounds,
                                    size_t *bytes) {
    (void)kernel, (void)bounds;
    *bytes = (size_t)((const gather_problem *)problem)->row_bytes;
    return ROPE_OK;
}

static rope_status gather_run(const void *problem, const void *kernel, const void *given,
                              void *workspace, void *stream) {
    const gather_problem *p = problem;
    const gather_call *call = given;
    const size_t row = (size_t)p->row_bytes;
    (void)kernel, (void)stream;
    for (int64_t i = 0; i < call->rows; i++) {
        const int64_t slot = call->slots[i];
        const unsigned char *page = call->pages[slot / p->page_rows];
        memcpy(workspace, page + (size_t)(slot % p->page_rows) * row, row);
        memcpy((unsigned char *)call->out + (size_t)i * row, workspace, row);
    }
    return ROPE_OK;
}

#ifdef PLUGIN_ATTENTION
/* Attention's first kernel, three that take no call, and one that cannot be bound. */
static rope_status first_run(const void *problem, const void *kernel, const void *call,
                             void *workspace, void *stream) {
    (void)problem, (void)kernel, (void)workspace, (void)stream;
    *(float *)((const rope_attention_call *)call)->out = 1;
    return ROPE_OK;
}

static rope_status picky_run(const void *problem, const void *kernel, const void *call,
                             void *workspace, void *stream) {
    (void)problem, (void)kernel, (void)call, (void)workspace, (void)stream;
    return host->fail(ROPE_ERROR_UNSUPPORTED, "picky takes no call");
}

/* Its memory has no bound, and no call has enough. */
static rope_status greedy_workspace(const void *problem, const void *kernel, const void *bounds,
                                    size_t *bytes) {
    (void)problem, (void)kernel, (void)bounds, (void)bytes;
    return host->fail(ROPE_ERROR_OVERFLOW, "greedy needs too much");
}

static rope_status greedy_run(const void *problem, const void *kernel, const void *call,
                              void *workspace, void *stream) {
    static int calls;
    (void)problem, (void)kernel, (void)call, (void)workspace, (void)stream;
    return host->fail(calls++ % 2 ? ROPE_ERROR_INVALID_VALUE : ROPE_ERROR_OVERFLOW,
                      "greedy's workspace is too small");
}

/* It has bounds, but far more than the first. */
static rope_status hungry_workspace(const void *problem, const void *kernel, const void *bounds,
                                    size_t *bytes) {
    (void)problem, (void)kernel, (void)bounds;
    *bytes = (size_t)1 << 30;
    return ROPE_OK;
}

static rope_status broken_bind(const rope_candidate *self, const void *problem, int32_t device,
                               void **kernel, char *reason) {
    (void)self, (void)problem, (void)device, (void)kernel;
    snprintf(reason, ROPE_REASON_SIZE, "no memory for it");
    return ROPE_ERROR_OUT_OF_MEMORY;
}

/* An append that stores nothing, and a decode that takes one token. */
static rope_status store_run(const void *problem, const void *kernel, const void *call,
                             void *workspace, void *stream) {
    (void)problem, (void)kernel, (void)call, (void)workspace, (void)stream;
    return ROPE_OK;
}

static rope_status single_run(const void *problem, const void *kernel, const void *given,
                              void *workspace, void *stream) {
    const rope_decode_call *call = given;
    (void)problem, (void)kernel, (void)workspace, (void)stream;
    if (call->append.rope.tokens != 1)
        return host->fail(ROPE_ERROR_UNSUPPORTED, "single takes one token");
    *(float *)call->attention.out = 2;
    return ROPE_OK;
}

static const char *single_kernel_of(const void *kernel, const void *call) {
    (void)kernel;
    return ((const rope_decode_call *)call)->append.rope.tokens == 1 ? NULL : "";
}

#define ATTENTION(label, takes, begins, needs)                                                     \
    {                                                                                              \
        .operation = "attention", .version = ROPE_ATTENTION_VERSION, .numerics = ROPE_BOUNDED,     \
        .name = label, .bind = begins, .workspace = needs, .run = takes                            \
    }
#endif

static const rope_candidate candidates[] = {
#ifdef PLUGIN_ATTENTION
    ATTENTION("first", first_run, NULL, NULL),
    ATTENTION("picky", picky_run, NULL, NULL),
    ATTENTION("greedy", greedy_run, NULL, greedy_workspace),
    ATTENTION("hungry", picky_run, NULL, hungry_workspace),
    ATTENTION("broken", first_run, broken_bind, NULL),
    {.operation = "append",
     .version = ROPE_APPEND_VERSION,
     .numerics = ROPE_BITWISE,
     .name = "store",
     .run = store_run},
    {.operation = "decode",
     .version = ROPE_DECODE_VERSION,
     .numerics = ROPE_BOUNDED,
     .name = "single",
     .run = single_run,
     .kernel_of = single_kernel_of},
#endif
    {.operation = "rope",
     .version = PLUGIN_ROPE_VERSION,
     .numerics = ROPE_BOUNDED,
     .name = "plain",
     .query = rope_query,
     .run = rope_run},
    {.operation = "copy",
     .version = ROPE_TRAFFIC_VERSION,
     .numerics = ROPE_BITWISE,
     .name = "bytes",
     .run = traffic_run},
    {.operation = "update",
     .version = ROPE_TRAFFIC_VERSION,
     .numerics = ROPE_BITWISE,
     .name = "bytes",
     .run = traffic_run},
    {.operation = GATHER_NAME,
     .version = GATHER_VERSION,
     .numerics = ROPE_BITWISE,
     .name = "by row",
     .query = gather_query,
     .bind = gather_bind,
     .workspace = gather_workspace,
     .run = gather_run,
     .release = gather_release},
};
static const rope_candidate_list list = {sizeof(rope_candidate), candidates,
                                         sizeof candidates / sizeof candidates[0]};
static const rope_candidate_list *const lists[] = {&list};

static const rope_backend backend = {
    .abi = PLUGIN_ABI,
    .priority = PLUGIN_PRIORITY,
    .struct_size = PLUGIN_SIZE,
    .name = PLUGIN_NAME,
    .lists = lists,
    .list_count = 1,
#ifdef PLUGIN_LOUD
    .settings = settings,
    .setting_count = 1,
#endif
    .device_count = device_count,
    .device_info = device_info,
    .alloc = alloc,
    .free = release,
    .copy_in = copy_in,
    .copy_out = copy_out,
    .synchronize = synchronize,
    .time = time_iterations,
};

ROPE_API const rope_backend *ROPE_BACKEND_ENTRY(const rope_host *given);

const rope_backend *ROPE_BACKEND_ENTRY(const rope_host *given) {
    host = given;
    return given->abi == ROPE_BACKEND_ABI ? &backend : NULL;
}
