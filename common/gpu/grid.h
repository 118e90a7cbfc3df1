/* Grids and blocks of plain and window kernels. */
#ifndef ROPEKIT_GPU_GRID_H
#define ROPEKIT_GPU_GRID_H

#include "common/gpu/operands.h"

int64_t gpu_ceiling(int64_t a, int64_t b);

/* Units of a block that has one tensor: as many as leave at most an eighth of the threads idle. */
uint32_t gpu_units_apart(int64_t q, int64_t k, uint32_t most);

/* Rows of a block that has room for so many. */
uint32_t gpu_rows_of_block(uint32_t room, int64_t rows);

/* Whether ids follow each other as rows do, so that batch rows are none of the kernel's concern. */
int gpu_has_ids_in_line(const rope_call *call);

/* Blocks of units of one tensor along x, of rows along y and z of the grid: z takes batch rows, or
 * where all are in line what y cannot. 0 where they are too many. */
int gpu_lay_out(const gpu_bound *bound, const rope_call *call, int32_t geometry, int in_line,
                gpu_launch *launch);

#endif
