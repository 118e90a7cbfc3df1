#include "common/gpu/grid.h"

#include <gpu_tuning.h>

int64_t gpu_ceiling(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

uint32_t gpu_units_apart(int64_t q, int64_t k, uint32_t most) {
    for (uint32_t units = most; units > 1; units--)
        if (8 * (gpu_ceiling(q, units) + gpu_ceiling(k, units)) * units <= 9 * (q + k))
            return units;
    return 1;
}

uint32_t gpu_rows_of_block(uint32_t room, int64_t rows) {
    const uint32_t most = room > GPU_BLOCK_Z_MOST ? GPU_BLOCK_Z_MOST : room ? room : 1;
    return most > rows ? (uint32_t)rows : most;
}

int gpu_has_ids_in_line(const rope_call *call) {
    const rope_position_map *map = &call->position;
    return call->batch == 1 || (map->ids && map->id_stride[1] == call->tokens);
}

static int lay_out_rows(const rope_call *call, int64_t rows, int in_line, gpu_launch *launch) {
    const int64_t blocks = gpu_ceiling(rows, launch->block.z);
    const int64_t z = in_line ? gpu_ceiling(blocks, GPU_GRID_YZ_MOST) : call->batch;
    const int64_t y = in_line ? gpu_ceiling(blocks, z) : blocks;
    if (y > GPU_GRID_YZ_MOST || z > GPU_GRID_YZ_MOST)
        return 0;
    launch->grid.y = (uint32_t)y;
    launch->grid.z = (uint32_t)z;
    launch->slab = (int32_t)(in_line ? y * launch->block.z : rows);
    return 1;
}

int gpu_lay_out(const gpu_bound *bound, const rope_call *call, int32_t geometry, int in_line,
                gpu_launch *launch) {
    const rope_problem *p = &bound->problem;
    const int64_t each = gpu_heads_of(p, geometry);
    const int64_t rows = in_line ? call->batch * call->tokens : call->tokens;
    const uint32_t lanes = (uint32_t)(p->pairs / gpu_vector_of(p, geometry));
    const uint32_t most = GPU_UNITS_THREADS / lanes;
    int64_t q = gpu_ceiling(call->tensor[0].heads, each);
    int64_t k = gpu_ceiling(call->tensor[1].heads, each);
    const uint32_t units = gpu_units_apart(q, k, most ? most : 1);
    const uint32_t room = GPU_THREADS(geometry, gpu_size_of(p), bound->early) / (lanes * units);
    q = gpu_ceiling(q, units) * units;
    launch->q_units = (int32_t)q;
    launch->block = (dim3){lanes, units, gpu_rows_of_block(room, rows)};
    launch->grid = (dim3){(uint32_t)gpu_ceiling(q + k, units), 1, 1};
    return lay_out_rows(call, rows, in_line, launch);
}
