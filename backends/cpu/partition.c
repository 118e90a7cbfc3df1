#include "backends/cpu/partition.h"

#if defined(_OPENMP)
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#endif

/* Below 1 MiB waking a team costs more than it saves. */
enum { BYTES_PER_THREAD = 512 * 1024 };

/* The runtime ends the process where it cannot make a thread. */
enum { MOST_THREADS = 1024 };

#if defined(_OPENMP)
/* A forked child has its parent's teams without the threads, and would wait for them for ever. Any
 * user of the same runtime may have made one, so forks are watched from the load on. */
static atomic_int team_lost;

static void lose_team(void) {
    team_lost = 1;
}

__attribute__((constructor)) static void watch_forks(void) {
    pthread_atfork(NULL, NULL, lose_team);
}

int cpu_threads_most(void) {
    int most = omp_in_parallel() || team_lost ? 1 : omp_get_max_threads();
    return most < MOST_THREADS ? most : MOST_THREADS;
}
#else
int cpu_threads_most(void) {
    return 1;
}
#endif

int cpu_threads_for(int64_t bytes) {
    if (bytes < 2 * BYTES_PER_THREAD)
        return 1;
    int64_t worth = bytes / BYTES_PER_THREAD, most = cpu_threads_most();
    return (int)(worth < most ? worth : most);
}
