/* Structs whose other side may be older or newer than this library. */
#ifndef ROPEKIT_COMMON_ABI_H
#define ROPEKIT_COMMON_ABI_H

#include <ropekit/rope.h>

/*
 * Copies a struct that begins with its size into `full` of full_size bytes; a missing tail becomes
 * 0. A longer struct is accepted when what lies beyond full_size is 0.
 */
rope_status rope_abi_read(void *full, size_t full_size, const void *given, const char *name);

/*
 * The same of a struct whose second member is such a struct too, of inner_full_size bytes here:
 * what follows it begins where the caller's, which may be of another size, ends.
 */
rope_status rope_abi_read_embedding(void *full, size_t full_size, size_t inner_full_size,
                                    const void *given, const char *name, const char *inner_name);

/* The same of a struct whose second member is one that embeds another: sizes and names of the
 * three, the outer one first. */
rope_status rope_abi_read_nested(void *full, const size_t full_size[3], const void *given,
                                 const char *const name[3]);

/* The opposite: copies as much of `full` as the caller's struct holds, its size member excepted. */
rope_status rope_abi_write(void *given, const void *full, size_t full_size, const char *name);

#endif
