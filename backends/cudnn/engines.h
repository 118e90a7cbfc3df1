/* Engines of a plan, one for each shape that its calls had. */
#ifndef ROPEKIT_CUDNN_ENGINES_H
#define ROPEKIT_CUDNN_ENGINES_H

#include "backends/cudnn/engine.h"

#include <pthread.h>
#include <stdatomic.h>

/* An engine, or why there is none. Immutable once it is in the list. */
typedef struct dnn_entry {
    dnn_shape shape;
    dnn_engine *engine; /* NULL: cuDNN has none for the shape, whatever memory there is */
    char reason[ROPE_REASON_SIZE];
    struct dnn_entry *next;
} dnn_entry;

typedef struct dnn_engines {
    _Atomic(dnn_entry *) first;
    pthread_mutex_t building;
    int32_t device;
} dnn_engines;

void dnn_engines_begin(dnn_engines *engines, int32_t device);
void dnn_engines_end(dnn_engines *engines);

/* The entry of a shape: found without a lock, or built under one on the current device, also while
 * a stream of this thread is captured. NULL without memory, which a later call may have. */
const dnn_entry *dnn_engines_get(dnn_engines *engines, const dnn_shape *shape);

#endif
