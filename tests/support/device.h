/*
 * The device under test: that of ROPE_BACKEND, or of the CPU, and of ROPE_TEST_DEVICE. Where it is
 * missing a test is skipped, or fails if ROPE_TEST_REQUIRE names the backend.
 */
#ifndef ROPEKIT_TESTS_DEVICE_H
#define ROPEKIT_TESTS_DEVICE_H

#include "tests/support/case.h"

const char *device_backend(void);
rope_device *device_open(void);
/* A plan of the descriptor is then one of the device. */
void device_choose(rope_desc *desc);
/* Heads of 64 fp32 elements on it. */
rope_desc device_desc(void);
/* 1 where device memory is host memory. */
int device_is_host(void);
/* 1 where kernels run on the CPU, those of an emulated GPU too: slowly, on the host's memory. */
int device_runs_on_cpu(void);
/* 1 where attention is a provider's: it may decline a call, and what lies in padding must be
 * finite.
 */
int device_is_provider(void);
/* Skips the test there; why: what a provider does not promise or take. */
void device_not_provided(const char *why);
/* Fails where no kernel ran, and clears the count: a provider declines some calls of a test, not
 * all. */
void device_check_runs(int64_t *runs);

/* The index-th kernel of the device for an operation, "reference" left out, and NULL past the last;
 * with ROPE_TEST_EMULATED=2, of emulated matrix products, attention's "generic" is left out too,
 * which multiplies no matrices. device_kernel: of the operation "rope". */
const char *device_kernel_of(const char *operation, int32_t index);
const char *device_kernel(int32_t index);

/* What is done with a copy of a case's arena in device memory. */
typedef rope_status device_work(const void *state, const test_case *c, void *memory);
/* Has it done, and brings the arena back in `result`. */
rope_status device_with_copy(const test_case *c, device_work *work, const void *state,
                             unsigned char *result);
/* The same while *workspace is memory of `bytes` on the device that means nothing; of 0 it stays.
 */
rope_status device_with_workspace(const test_case *c, device_work *work, const void *state,
                                  void **workspace, size_t bytes, unsigned char *result);

/* A call of the plan from a graph; an empty one, which has none, by itself. */
rope_status device_replay(const rope_plan *plan, const void *args, void *workspace);

/*
 * Runs `count` calls of one plan on a copy of a case's arena in device memory and brings the arena
 * back in `result`. kernel NULL: the device's choice. Returns the first status that is not ROPE_OK;
 * ROPE_ERROR_UNSUPPORTED where a named kernel declines.
 */
rope_status device_run(const test_case *c, const rope_desc *desc, const rope_args *args,
                       int32_t count, const char *kernel, unsigned char *result);

/* The position_flag of a call that the device has run, where it has one, is 1; becomes 0. */
void device_check_flag(const test_case *c, const rope_args *args, unsigned char *result);

/* Sets the number of OpenMP threads where the library runs on OpenMP; 0 if it does not. */
int device_threads(int count);

#endif
