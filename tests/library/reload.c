/*
 * reload HOST: opens a shared object that uses libropekit, has it called on an OpenMP team and
 * closes it, several times. The team outlives the call, and its code must outlive dlclose.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TIMES = 5 };

static int once(const char *path) {
    int (*rotate)(void);
    void *host = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *symbol = host ? dlsym(host, "rotate_on_a_team") : NULL;
    if (!symbol) {
        fprintf(stderr, "reload: %s\n", dlerror());
        return 0;
    }
    memcpy(&rotate, &symbol, sizeof symbol);
    const int done = rotate();
    dlclose(host);
    usleep(20000); /* for the team to look for work */
    return done;
}

int main(int argc, char **argv) {
    for (int i = 0; i < TIMES; i++)
        if (argc != 2 || !once(argv[1]))
            return 1;
    printf("opened, called and closed %d times\n", TIMES);
    return 0;
}
