/*
 * reload LIBRARY: opens libropekit.so, calls it on an OpenMP team and closes it, several times. The
 * team outlives the call, and its code must outlive dlclose.
 */
#include <ropekit/rope.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TOKENS = 4096, HEAD_DIM = 128, TIMES = 5 };
static float data[TOKENS * HEAD_DIM * 2];

typedef rope_status (*create_function)(const rope_desc *, rope_plan **);
typedef rope_status (*apply_function)(const rope_plan *, const rope_args *);
typedef void (*destroy_function)(rope_plan *);

static int find(void *library, const char *name, void *function) {
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol);
    return symbol != NULL;
}

static int once(const char *path) {
    rope_desc desc = ROPE_DESC_INIT;
    rope_args args = ROPE_ARGS_INIT;
    rope_plan *plan = NULL;
    create_function create;
    apply_function apply;
    destroy_function destroy;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library || !find(library, "rope_plan_create", &create) ||
        !find(library, "rope_apply", &apply) || !find(library, "rope_plan_destroy", &destroy)) {
        fprintf(stderr, "reload: %s\n", dlerror());
        return 0;
    }
    desc.dtype = ROPE_F32;
    desc.head_dim = HEAD_DIM;
    desc.backend = "cpu";
    args.batch = 1;
    args.tokens = TOKENS;
    args.q.in = args.q.out = data;
    args.q.heads = 2;
    if (create(&desc, &plan) != ROPE_OK || apply(plan, &args) != ROPE_OK)
        return 0;
    destroy(plan);
    dlclose(library);
    usleep(20000); /* for the team to look for work */
    return 1;
}

int main(int argc, char **argv) {
    for (int i = 0; i < TIMES; i++)
        if (argc != 2 || !once(argv[1]))
            return 1;
    printf("opened, called and closed %d times\n", TIMES);
    return 0;
}
