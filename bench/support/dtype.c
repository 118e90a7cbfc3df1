#include "bench/support/dtype.h"

#include "tests/oracle/oracle.h"

const char *dtype_name(int32_t dtype) {
    static const char *const names[] = {"none", "f32",    "f16",    "bf16",       "f64", "i32",
                                        "i64",  "f8e4m3", "f8e5m2", "f8e4m3fnuz", "i8"};
    return names[dtype];
}

size_t dtype_bytes(int32_t dtype) {
    return dtype >= ROPE_F8E4M3 ? 1 : (size_t)oracle_dtype_size(dtype);
}
