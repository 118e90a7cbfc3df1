#include "backends/cpu/partition.h"

#include "backends/cpu/features.h"
#include "common/math/token.h"
#include "common/status.h"

#if defined(_OPENMP)
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#endif

/* Below 1 MiB waking a team costs more than it saves (docs/performance.md). */
enum { BYTES_PER_THREAD = 512 * 1024 };

/* Smaller calls are taken to find their memory in the cache. */
enum { NEAR_BYTES = 256 * 1024 };

/* The runtime ends the process where it cannot make a thread. */
enum { MOST_THREADS = 1024 };

#if defined(_OPENMP)
/* A forked child has its parent's team without the threads, and would wait for them for ever. */
static atomic_int team_lost;

static void lose_team(void) {
    team_lost = 1;
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, lose_team);
}

/* Before a team is made. */
static void expect_team(void) {
    static pthread_once_t watched = PTHREAD_ONCE_INIT;
    pthread_once(&watched, watch_forks);
}

int cpu_threads_most(void) {
    int most = omp_in_parallel() || team_lost ? 1 : omp_get_max_threads();
    return most < MOST_THREADS ? most : MOST_THREADS;
}
#else
static void expect_team(void) {}

int cpu_threads_most(void) {
    return 1;
}
#endif

int cpu_threads_for(int64_t bytes) {
    if (bytes < 2 * BYTES_PER_THREAD)
        return 1;
    int64_t worth = bytes / BYTES_PER_THREAD, most = cpu_threads_most();
    if (most > 1)
        expect_team();
    return (int)(worth < most ? worth : most);
}

static int64_t elements_of(const rope_problem *problem, const rope_call *call, int tensor) {
    const rope_operand *operand = &call->tensor[tensor];
    int in_place = operand->in == operand->out;
    int64_t row = in_place ? 2 * (int64_t)problem->pairs : problem->head_dim[tensor];
    return call->batch * call->tokens * operand->heads * row;
}

static int64_t bytes_of(const rope_problem *problem, const rope_call *call) {
    int64_t size = problem->dtype == ROPE_F64 ? 8 : problem->dtype == ROPE_F32 ? 4 : 2;
    return 2 * size * (elements_of(problem, call, 0) + elements_of(problem, call, 1));
}

/* Part `index` of `parts` of n, in order and without gaps. */
static int64_t part(int64_t n, int index, int parts) {
    if (parts == 1) /* without two divisions, which cost as much as a small call */
        return index ? n : 0;
    return n / parts * index + (n % parts < index ? n % parts : index);
}

/* Contiguous tokens a thread; heads where there are fewer tokens than threads. Written where it is
 * read: a copy of what was just written waits for the stores. */
static void fill_slice(const rope_call *call, int64_t bytes, int index, int parts,
                       cpu_slice *slice) {
    int64_t tokens = call->batch * call->tokens;
    int by_heads = tokens < parts;
    const cpu_prefetch_policy *policy = cpu_prefetch_policy_chosen();
    slice->first_token = by_heads ? 0 : part(tokens, index, parts);
    slice->last_token = by_heads ? tokens : part(tokens, index + 1, parts);
    slice->policy = policy;
    slice->exceeds = bytes > policy->cache_bytes;
    slice->near = bytes < NEAR_BYTES;
    slice->split_loads =
        policy->split_loads && (bytes >= policy->split_loads * parts || slice->exceeds);
    for (int t = 0; t < 2; t++) {
        int64_t heads = call->tensor[t].heads;
        slice->first_head[t] = by_heads ? part(heads, index, parts) : 0;
        slice->last_head[t] = by_heads ? part(heads, index + 1, parts) : heads;
    }
}

static rope_status fail_sequence(const rope_position_map *map, int64_t s) {
    return rope_fail(ROPE_ERROR_INVALID_VALUE,
                     "cu_seqlens[%lld] is %lld and cu_seqlens[%lld] is %lld; allowed is multiples "
                     "of shard_size (%d)%s",
                     (long long)s, (long long)rope_index_at(map, map->cu_seqlens, s),
                     (long long)s + 1, (long long)rope_index_at(map, map->cu_seqlens, s + 1),
                     map->shard_size,
                     map->shard == ROPE_SHARD_ZIGZAG ? ", an even number of them apart" : "");
}

static rope_status check_boundaries(const rope_position_map *map) {
    for (int64_t s = 0; s < map->sequences; s++) {
        int64_t begin = rope_index_at(map, map->cu_seqlens, s);
        int64_t end = rope_index_at(map, map->cu_seqlens, s + 1);
        if (end < begin)
            return rope_fail(ROPE_ERROR_INVALID_VALUE,
                             "cu_seqlens[%lld] is %lld and cu_seqlens[%lld] is %lld; allowed is "
                             "boundaries that do not fall",
                             (long long)s, (long long)begin, (long long)s + 1, (long long)end);
    }
    return ROPE_OK;
}

static rope_status fail_position(const rope_problem *problem, const rope_call *call, int64_t batch,
                                 int64_t index) {
    rope_site site = rope_site_of(&call->position, batch, index);
    int64_t position = 0;
    if (!site.divides)
        return fail_sequence(&call->position, site.sequence);
    if (call->table_rows == 0)
        return rope_fail(ROPE_ERROR_POSITION_RANGE,
                         "table_rows is 0; allowed is > 0 where out_of_range is error and a token "
                         "takes a row");
    for (int axis = 0; axis < problem->axes; axis++) {
        position = rope_position_of(&call->position, &site, axis);
        if (position < 0 || position >= call->table_rows)
            break;
    }
    return rope_fail(ROPE_ERROR_POSITION_RANGE,
                     "the position of batch %lld, token %lld is %lld; allowed is 0..%lld "
                     "(table_rows - 1)",
                     (long long)batch, (long long)index, (long long)position,
                     (long long)call->table_rows - 1);
}

/* The CPU looks at every position first, so that a failing call writes nothing. */
static rope_status check_positions(const rope_problem *problem, const rope_call *call) {
    int in_table =
        problem->angle_mode == ROPE_ANGLE_TABLE && problem->out_of_range == ROPE_OUT_OF_RANGE_ERROR;
    rope_status status = call->position.cu_seqlens ? check_boundaries(&call->position) : ROPE_OK;
    if (status != ROPE_OK)
        return status;
    if (!in_table && (problem->shard == ROPE_SHARD_NONE || !call->position.cu_seqlens))
        return ROPE_OK;
    for (int64_t b = 0; b < call->batch; b++)
        for (int64_t t = 0; t < call->tokens; t++)
            if (rope_token_of(problem, call, b, t).fate == ROPE_TOKEN_FAILS)
                return fail_position(problem, call, b, t);
    return ROPE_OK;
}

static void run_part(const cpu_kernel *kernel, const rope_problem *problem, const rope_call *call,
                     int64_t bytes, int index, int parts) {
    cpu_slice slice;
    fill_slice(call, bytes, index, parts, &slice);
    if (problem->dtype == ROPE_F64)
        kernel->slice_f64(problem, call, &slice);
    else if (kernel->slice)
        kernel->slice(problem, call, &slice);
    else
        cpu_rope_drive(kernel, problem, call, &slice);
}

rope_status cpu_rotate_call(const void *canonical, const void *kernel, const void *given,
                            void *workspace, void *stream) {
    (void)workspace, (void)stream;
    const rope_problem *problem = canonical;
    const rope_call *call = given;
    rope_status status = check_positions(problem, call);
    if (status != ROPE_OK)
        return status;
    int64_t bytes = bytes_of(problem, call);
    int parts = cpu_threads_for(bytes);
    if (parts == 1) {
        run_part(kernel, problem, call, bytes, 0, 1);
        return ROPE_OK;
    }
#if defined(_OPENMP)
#pragma omp parallel num_threads(parts)
    run_part(kernel, problem, call, bytes, omp_get_thread_num(), omp_get_num_threads());
#endif
    return ROPE_OK;
}
