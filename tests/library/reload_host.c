/* A shared object that uses libropekit, linked to it or holding it: what tests/library/reload.c
 * opens. */
#include <ropekit/rope.h>

enum { TOKENS = 4096, HEAD_DIM = 128, HEADS = 2 };

__attribute__((visibility("default"))) int rotate_on_a_team(void);

/* A call of 4 MiB, which runs on an OpenMP team; whether it succeeded. */
int rotate_on_a_team(void) {
    static float data[TOKENS][HEADS][HEAD_DIM];
    rope_desc desc = ROPE_DESC_INIT;
    rope_args args = ROPE_ARGS_INIT;
    rope_plan *plan;
    desc.dtype = ROPE_F32;
    desc.head_dim = HEAD_DIM;
    desc.backend = "cpu";
    args.batch = 1;
    args.tokens = TOKENS;
    args.q.in = args.q.out = data;
    args.q.heads = HEADS;
    if (rope_plan_create(&desc, &plan) != ROPE_OK)
        return 0;
    const rope_status status = rope_apply(plan, &args);
    rope_plan_destroy(plan);
    return status == ROPE_OK;
}
