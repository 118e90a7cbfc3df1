/* Which elements of the rotary window make a pair, r = rotary_dim:
 *   half-split   r = 8 --> [0 1 2 3 0 1 2 3]
 *   interleaved  r = 8 --> [0 0 1 1 2 2 3 3] */
#ifndef ROPEKIT_COMMON_LAYOUT_H
#define ROPEKIT_COMMON_LAYOUT_H

#include "common/math/portable.h"

#include <ropekit/rope.h>

ROPE_FN int rope_first_of(int pairing, int pair) {
    return pairing == ROPE_PAIRING_INTERLEAVED ? 2 * pair : pair;
}

ROPE_FN int rope_second_of(int pairing, int pair, int pairs) {
    return pairing == ROPE_PAIRING_INTERLEAVED ? 2 * pair + 1 : pair + pairs;
}

#endif
