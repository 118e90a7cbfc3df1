/*
 * fork: a process has a team of OpenMP, made by this program and then by the library. Its forked
 * children call every operation with work for several threads and write what the parent does. A
 * child has its parent's team without the threads, and would wait for them for ever.
 */
#define _GNU_SOURCE
#include <ropekit/attention.h>

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOKENS = 512, HEADS = 8, DIM = 64, ROW = HEADS * DIM, ELEMENTS = TOKENS * ROW };
enum { Q, K, V, GRADIENT, READ };
enum { ROOM = 1 << 26 };

typedef struct memory {
    _Alignas(256) char workspace[ROOM];
    float in[READ][ELEMENTS];                                               /* read */
    float out[GRADIENT][ELEMENTS], attended[ELEMENTS], lse[TOKENS * HEADS]; /* written */
} memory;

static memory *m; /* that children share */

static rope_args rope_of(void) {
    rope_args args = ROPE_ARGS_INIT;
    args.batch = 1;
    args.tokens = TOKENS;
    args.q = (rope_tensor){.in = m->in[Q], .out = m->out[Q], .heads = HEADS};
    args.k = (rope_tensor){.in = m->in[K], .out = m->out[K], .heads = HEADS};
    return args;
}

static rope_status apply(void) {
    rope_desc desc = ROPE_DESC_INIT;
    const rope_args args = rope_of();
    rope_plan *plan = NULL;
    desc.dtype = ROPE_F32;
    desc.head_dim = DIM;
    rope_status status = rope_plan_create(&desc, &plan);
    if (status == ROPE_OK)
        status = rope_apply(plan, &args);
    rope_plan_destroy(plan);
    return status;
}

static rope_append_desc append_desc(void) {
    rope_append_desc desc = ROPE_APPEND_DESC_INIT;
    desc.rope.dtype = ROPE_F32;
    desc.rope.head_dim = DIM;
    desc.q.norm = (rope_norm){.type = ROPE_NORM_RMS, .eps = 1e-6};
    return desc;
}

static rope_append_args append_args(void) {
    rope_append_args args = ROPE_APPEND_ARGS_INIT;
    args.rope = rope_of();
    args.v = (rope_tensor){.in = m->in[V], .out = m->out[V], .heads = HEADS};
    return args;
}

static rope_status append(void) {
    const rope_append_desc desc = append_desc();
    const rope_append_args args = append_args();
    rope_plan *plan = NULL;
    rope_status status = rope_append_plan_create(&desc, &plan);
    if (status == ROPE_OK)
        status = rope_append(plan, &args);
    rope_plan_destroy(plan);
    return status;
}

static rope_status append_backward(void) {
    const rope_append_desc desc = append_desc();
    const rope_append_args forward = append_args();
    rope_append_backward_args args = ROPE_APPEND_BACKWARD_ARGS_INIT;
    rope_plan *plan = NULL;
    args.forward = &forward;
    args.q.in = m->in[GRADIENT];
    args.q.out = m->out[Q];
    args.k.in = m->in[V];
    args.k.out = m->out[K];
    args.workspace = m->workspace;
    args.workspace_bytes = ROOM;
    rope_status status = rope_append_backward_plan_create(&desc, &plan);
    if (status == ROPE_OK)
        status = rope_append_backward(plan, &args);
    rope_plan_destroy(plan);
    return status;
}

static rope_attention_desc attention_desc(void) {
    rope_attention_desc desc = ROPE_ATTENTION_DESC_INIT;
    desc.rope.dtype = ROPE_F32;
    desc.rope.head_dim = DIM;
    desc.tuning = "";
    return desc;
}

static rope_attention_args attention_args(void) {
    rope_attention_args args = ROPE_ATTENTION_ARGS_INIT;
    args.rope = rope_of();
    args.rope.q.out = args.rope.k.out = NULL;
    args.v = (rope_tensor){.in = m->in[V], .heads = HEADS};
    args.out.data = m->attended;
    args.lse = m->lse;
    args.workspace = m->workspace;
    args.workspace_bytes = ROOM;
    return args;
}

static rope_status attention(void) {
    const rope_attention_desc desc = attention_desc();
    const rope_attention_args args = attention_args();
    rope_plan *plan = NULL;
    rope_status status = rope_attention_plan_create(&desc, &plan);
    if (status == ROPE_OK)
        status = rope_attention(plan, &args);
    rope_plan_destroy(plan);
    return status;
}

static rope_status attention_backward(void) {
    const rope_attention_desc desc = attention_desc();
    const rope_attention_args forward = attention_args();
    rope_attention_backward_args args = ROPE_ATTENTION_BACKWARD_ARGS_INIT;
    rope_plan *plan = NULL;
    args.forward = &forward;
    args.dout = m->in[GRADIENT];
    args.dq.data = m->out[Q];
    args.dk.data = m->out[K];
    args.dv.data = m->out[V];
    rope_status status = rope_attention_backward_plan_create(&desc, &plan);
    if (status == ROPE_OK)
        status = rope_attention_backward(plan, &args);
    rope_plan_destroy(plan);
    return status;
}

/* In this order: the last one reads what that ahead of it writes. */
static const struct {
    const char *name;
    rope_status (*run)(void);
} operations[] = {{"rope", apply},
                  {"append", append},
                  {"append_backward", append_backward},
                  {"attention", attention},
                  {"attention_backward", attention_backward}};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

static int run(int operation) {
    memset(m->out, 0, sizeof m->out);
    const rope_status status = operations[operation].run();
    if (status != ROPE_OK)
        fprintf(stderr, "fork: %s: %s: %s\n", operations[operation].name,
                rope_status_string(status), rope_last_error());
    return status == ROPE_OK;
}

/* A wait that does not end is a signal. */
static int run_in_child(int operation) {
    int status = -1;
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        _exit(!run(operation));
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        fprintf(stderr, "fork: %s: the child ended with wait status %#x\n",
                operations[operation].name, (unsigned)status);
    return status == 0;
}

/* A sum of what an operation wrote, which any other bit changes. What attention wrote is in the
 * gradients that its backward writes. */
static uint64_t written(void) {
    uint64_t sum = 0;
    const unsigned char *byte = (const unsigned char *)m->out;
    for (size_t i = 0; i < sizeof m->out; i++)
        sum = sum * 31 + byte[i];
    return sum;
}

static void fill(void) {
    float *to = m->in[0];
    uint32_t state = 1;
    for (size_t i = 0; i < READ * (size_t)ELEMENTS; i++) {
        state = state * 1664525 + 1013904223;
        to[i] = (float)(state >> 8) / (float)(1 << 23) - 1;
    }
}

int main(void) {
    uint64_t sums[OPERATIONS];
    int threads = 0, failed = 0;
    m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED)
        return 1;
    fill();
#pragma omp parallel reduction(+ : threads)
    threads += 1;
    if (threads < 2) {
        printf("there is no team\n");
        return 77;
    }
    for (int i = 0; i < OPERATIONS; i++) {
        failed |= !run_in_child(i);
        sums[i] = written();
    }
    for (int i = 0; i < OPERATIONS && !failed; i++) {
        failed |= !run(i);
        if (written() != sums[i] || !run_in_child(i) || written() != sums[i]) {
            fprintf(stderr, "fork: %s: parent and child differ\n", operations[i].name);
            failed = 1;
        }
    }
    return failed;
}
