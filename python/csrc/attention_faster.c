/*
 * Which is the faster one for an eager call of tensors alone on CUDA: a kernel of the library, or
 * its rotation and then PyTorch's kernel. Numbers are of an H100 and an H200.
 */
#include "python/csrc/attention.h"

#include <string.h>

/* What Python's FASTER lists. */
enum {
    BY_PYTORCH,
    BY_LIBRARY_UNCAPTURED, /* the host is what the call waits for, but in a graph */
    BY_LIBRARY_IN_VECTORS  /* of tensors that lie as cuDNN takes them */
};

/* Elements of q times keys, and of k, up to which the library's own kernels take less time than a
 * host needs for a rotation and PyTorch's kernel, of which they take 2.5 times the device's time.
 */
enum { LITTLE = 1 << 30, LITTLE_KEYS = 1 << 23 };

/* Fewest tokens of cuDNN's kernels, which decline fewer that follow keys, as a decoded token does.
 */
enum { FEWEST = 128 };

/* Fewest tokens for which Hopper's kernel is the faster one: in calls of little work, with heads of
 * up to 64 or beyond 128, and with heads of up to 64 and many elements of k, which rotate ahead of
 * it. */
enum { SOME = 512, MANY = 1024, MANY_OF_LARGE = 4096, LARGE_KEYS = 1 << 24 };

/* Fewest elements of k with which Hopper's backward was ahead of any other on an H200. */
enum { MANY_KEYS = 1 << 20 };

static int begins(const char *name, const char *with) {
    return strncmp(name, with, strlen(with)) == 0;
}

/* Sizes of heads that were measured on every GPU. A table has no backward of wider ones. */
static int is_measured(int32_t dim) {
    return dim == 64 || dim == 128;
}

/* Of heads of 192 cuDNN has kernels, Hopper's takes as long as with 256. */
static int suits_hopper(int64_t tokens, int64_t k_elements, int32_t head_dim, int32_t v_head_dim) {
    if (head_dim == 192 && v_head_dim == 192)
        return 0;
    return (head_dim > 64 && head_dim <= 128) || tokens >= MANY_OF_LARGE ||
           (tokens >= MANY && (head_dim > 128 || k_elements <= LARGE_KEYS));
}

/*
 * kernel, backward: what the library takes for the call and, with a gradient, for its backward;
 * NULL for the kernel: whatever it takes. A table names cuDNN's where they were the fastest:
 * PyTorch's behind a rotation take as long on the device and longer on the host. The library's own
 * kernel for Hopper is faster than both where suits_hopper says so, in calls of little work from
 * SOME tokens on, and its backward with MANY_KEYS.
 */
ROPE_API int32_t ropekit_faster(const char *kernel, const char *backward, int64_t tokens,
                                int64_t keys, int64_t q_elements, int64_t k_elements,
                                int32_t head_dim, int32_t v_head_dim, int32_t derives) {
    const int measured = is_measured(head_dim) && is_measured(v_head_dim),
              is_little = measured && !derives && keys > 0 && q_elements <= LITTLE / keys &&
                          k_elements <= LITTLE_KEYS,
              may_derive = !derives || (head_dim <= 128 && v_head_dim <= 128 && tokens == keys),
              may_be_tuned = tokens >= FEWEST && may_derive;
    if (!kernel)
        return is_little || may_be_tuned ? BY_LIBRARY_IN_VECTORS : BY_PYTORCH;
    const int derives_fast = !derives || begins(backward, "cudnn:") ||
                             (strcmp(backward, "cuda:sm90") == 0 && k_elements >= MANY_KEYS),
              is_tuned = begins(kernel, "cudnn:") && derives_fast && (measured || !derives),
              is_own = begins(kernel, "cuda:") && strcmp(kernel, "cuda:generic") != 0,
              is_hopper = strcmp(kernel, "cuda:sm90") == 0 &&
                          suits_hopper(tokens, k_elements, head_dim, v_head_dim) && derives_fast;
    if (may_be_tuned && is_hopper && tokens >= SOME)
        return BY_LIBRARY_IN_VECTORS;
    if (is_little && (is_own || (is_tuned && tokens < FEWEST && tokens != keys)))
        return BY_LIBRARY_UNCAPTURED;
    return may_be_tuned && (is_tuned || is_hopper) ? BY_LIBRARY_IN_VECTORS : BY_PYTORCH;
}
