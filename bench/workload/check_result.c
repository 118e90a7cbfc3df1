#include "bench/workload/check_result.h"

#include "tests/oracle/oracle.h"

#include <math.h>
#include <stdbool.h>

const char *const check_tensors[] = {"q", "k", "v", "out", "lse", "dq", "dk", "dv"};

void check_element(check_result *r, int32_t dtype, const check_place *at, double got, double value,
                   double bound) {
    double error = fabs(got - value);
    bool accepted = oracle_accepts(dtype, got, value, bound);
    r->elements++;
    r->refused += !accepted;
    if (isfinite(error) && error > r->max_error)
        r->max_error = error;
    double worst = isfinite(error) && error > 0 ? error / bound : accepted ? 0 : INFINITY;
    if (worst < r->worst || (r->elements > 1 && worst == r->worst))
        return;
    r->worst = worst;
    r->bound = bound;
    r->got = got;
    r->value = value;
    r->at = *at;
}
