/* A libcudnn.so.9 that tells a version, or with CUDNN_VERSION 0 does not. */
#include <stddef.h>

#if CUDNN_VERSION
size_t cudnnGetVersion(void);

size_t cudnnGetVersion(void) {
    return CUDNN_VERSION;
}
#else
int cudnn_is_other(void);

int cudnn_is_other(void) {
    return 0;
}
#endif
