/* What the files of the generator share. */
#ifndef ROPEKIT_TESTS_CASE_PARTS_H
#define ROPEKIT_TESTS_CASE_PARTS_H

#include "tests/cases.h"
#include "tests/oracle/oracle.h"

void case_choose_desc(test_case *c, const case_wish *wish);

/* Fills memory with numbers of a type within +-scale; wild: some from the edges of the format. */
void case_fill_data(test_random *r, int wild, void *from, size_t bytes, int32_t dtype,
                    double scale);

#endif
