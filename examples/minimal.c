#include <ropekit/rope.h>
#include <stdio.h>

int main(void) {
    static float q[4][8][128] = {{{1}}}; /* tokens, heads, elements */
    rope_desc desc = ROPE_DESC_INIT;
    desc.dtype = ROPE_F32, desc.head_dim = 128;
    desc.backend = "cpu"; /* as q is host memory */
    rope_args args = ROPE_ARGS_INIT;
    args.batch = 1, args.tokens = 4;
    args.q.in = args.q.out = q, args.q.heads = 8;
    rope_plan *plan;
    if (rope_plan_create(&desc, &plan) != ROPE_OK || rope_apply(plan, &args) != ROPE_OK)
        return fprintf(stderr, "%s\n", rope_last_error()), 1;
    printf("%s: q[0] = %g %g\n", rope_plan_kernel(plan), q[0][0][0], q[0][0][64]);
    rope_plan_destroy(plan);
}
