/* The symbol that libropekit looks for. */
#include "backends/gpu/backend.h"

__attribute__((visibility("default"))) const rope_backend *
rope_backend_entry(const rope_host *host);

const rope_backend *rope_backend_entry(const rope_host *host) {
    return gpu_backend_for(host);
}
