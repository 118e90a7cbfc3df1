/* ROPE_TEST_REQUIRE: a backend whose absence is a failure, not a skip. */
#ifndef ROPEKIT_TESTS_REQUIRED_H
#define ROPEKIT_TESTS_REQUIRED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether it names this backend. A name that is no backend of ours ends the process with 2: a slip
 * would turn failures into skips. */
static inline int test_requires(const char *backend) {
    static const char *const known[] = {"", "cpu", "cuda", "cudnn", "hip"};
    const char *name = getenv("ROPE_TEST_REQUIRE");
    int found = !name;
    for (size_t i = 0; i < sizeof known / sizeof known[0] && !found; i++)
        found = strcmp(name, known[i]) == 0;
    if (!found) {
        fprintf(stderr, "ROPE_TEST_REQUIRE is \"%.60s\"; allowed is cpu, cuda, cudnn or hip\n",
                name);
        exit(2);
    }
    return name && strcmp(name, backend) == 0;
}

#endif
