/*
 * A call in slices that run one after another in the same memory: cuDNN's deterministic backward
 * keeps 2 bytes for each pair of a query and a key, and head, unless it has an engine that does
 * not. Sequences and heads of keys do not meet in it, so slices have the bits of a call of their
 * shape.
 */
#ifndef ROPEKIT_CUDNN_SLICES_H
#define ROPEKIT_CUDNN_SLICES_H

#include "backends/cudnn/layout.h"

/* Has what dnn_layout_of() made run at once. Whether slices may be better. */
int dnn_set_whole(dnn_layout *layout);

/* Sets the layout's slice, unless an engine of all, which needs `whole` bytes, fits as it is. */
void dnn_set_slice(dnn_layout *layout, size_t whole);

int64_t dnn_slice_count(const dnn_layout *layout);
int dnn_slices_differ(const dnn_layout *layout);

/* What the engine of slice n is built for. All have the shape of the first but those that end the
 * sequences, or the heads of a sequence, which have the shape of the last. */
void dnn_slice_shape(const dnn_layout *layout, int64_t n, dnn_shape *shape);
int dnn_slice_ends(const dnn_layout *layout, int64_t n);

/* Bytes beyond a call's parts that engines need at most, of this call or of a smaller one. */
size_t dnn_slice_bytes(const dnn_layout *layout);

/* What the engine of slice n is given. */
void dnn_slice_pointers(const dnn_layout *layout, void *workspace, int64_t n,
                        void *at[DNN_POINTERS]);

#endif
