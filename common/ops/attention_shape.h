/* How calls of "attention" and of its backward are told apart when a kernel is chosen. */
#ifndef ROPEKIT_COMMON_ATTENTION_SHAPE_H
#define ROPEKIT_COMMON_ATTENTION_SHAPE_H

#include "common/tuning.h"

extern const rope_shape rope_attention_shape, rope_attention_backward_shape;

#endif
