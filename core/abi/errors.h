/* The calling thread's last error. Both functions set it and return a status. */
#ifndef CLGRAFT_ERRORS_H
#define CLGRAFT_ERRORS_H

#include "clgraft.h"

clg_status clg_fail(clg_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
clg_status clg_cl_fail(const char *what, int32_t code);

#endif
