#include "common/call.h"

rope_status rope_apply(const rope_plan *plan, const rope_args *args) {
    rope_call call;
    int empty;
    rope_status status = rope_call_read(plan, args, &call, &empty);
    if (status != ROPE_OK || empty)
        return status;
    return plan->candidate->run(&plan->problem, plan->kernel, &call);
}
