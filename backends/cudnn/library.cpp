#include "backends/cudnn/library.h"

#include "backends/cudnn/handles.h"

#include <dlfcn.h>

#include <cstdio>
#include <exception>

/* What the front end looks its symbols up in. */
void *cudnn_frontend::cudnn_dlhandle;

namespace {

/* The first that has sinks; strides of lse and offsets of 64 bits are older. */
constexpr size_t least_version = 91300;

struct state {
    rope_status status = ROPE_ERROR_NO_DEVICE;
    char reason[ROPE_REASON_SIZE] = "";
};

void open_both(state *s) {
    const char *name = "libcudnn.so.9";
    cudnn_frontend::cudnn_dlhandle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!cudnn_frontend::cudnn_dlhandle) {
        std::snprintf(s->reason, sizeof s->reason, "cuDNN is not found: %s", dlerror());
        return;
    }
    const size_t version = cudnn_frontend::detail::get_backend_version();
    if (version < least_version)
        std::snprintf(s->reason, sizeof s->reason, "cuDNN is %zu.%zu.%zu; allowed is >= 9.13",
                      version / 10000, version / 100 % 100, version % 100);
    else if (cudnn_frontend::detail::get_cuda_runtime_version() == 0)
        std::snprintf(s->reason, sizeof s->reason, "the CUDA runtime does not tell its version");
    else
        s->status = ROPE_OK;
}

state opened() {
    state s;
    try {
        open_both(&s);
    } catch (const std::exception &e) {
        std::snprintf(s.reason, sizeof s.reason, "%s", e.what());
    }
    return s;
}

} // namespace

rope_status dnn_library_open(char *reason) {
    static const state once = opened();
    std::snprintf(reason, ROPE_REASON_SIZE, "%s", once.reason);
    return once.status;
}
