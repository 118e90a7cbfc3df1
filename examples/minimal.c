#include <ropekit/rope.h>
#include <stdio.h>

int main(void) {
    float q[4][8][128] = {{{1}}}; /* tokens, heads, elements */
    rope_desc desc = {.struct_size = sizeof desc, .dtype = ROPE_F32, .head_dim = 128};
    desc.backend = "cpu"; /* as q is host memory */
    rope_args args = {.struct_size = sizeof args, .batch = 1, .tokens = 4};
    args.q = (rope_tensor){.in = q, .out = q, .heads = 8};
    rope_plan *plan;
    if (rope_plan_create(&desc, &plan) != ROPE_OK || rope_apply(plan, &args) != ROPE_OK)
        return fprintf(stderr, "%s\n", rope_last_error()), 1;
    printf("%s: q[0] = %g %g\n", rope_plan_kernel(plan), q[0][0][0], q[0][0][64]);
    rope_plan_destroy(plan);
}
