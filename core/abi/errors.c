/* The calling thread's last error. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "errors.h"
#include "planner.h"

static __thread char message[2048];

const char *clg_last_error(void) { return message; }

void clg_set_error(const char *text) { snprintf(message, sizeof message, "%s", text ? text : ""); }

clg_status clg_fail(clg_status status, const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    return status;
}

static const char *cl_name(int32_t code) {
    switch (code) {
    case -4: return "CL_MEM_OBJECT_ALLOCATION_FAILURE";
    case -5: return "CL_OUT_OF_RESOURCES";
    case -6: return "CL_OUT_OF_HOST_MEMORY";
    case -30: return "CL_INVALID_VALUE";
    case -34: return "CL_INVALID_CONTEXT";
    case -36: return "CL_INVALID_COMMAND_QUEUE";
    case -38: return "CL_INVALID_MEM_OBJECT";
    case -48: return "CL_INVALID_KERNEL";
    case -50: return "CL_INVALID_ARG_VALUE";
    case -51: return "CL_INVALID_ARG_SIZE";
    case -52: return "CL_INVALID_KERNEL_ARGS";
    case -54: return "CL_INVALID_WORK_GROUP_SIZE";
    case -61: return "CL_INVALID_BUFFER_SIZE";
    default: return "an OpenCL error";
    }
}

clg_status clg_cl_fail(const char *what, int32_t code) {
    clg_status status = code == -4 || code == -6 || code == -61 ? CLG_OUT_OF_MEMORY : CLG_OPENCL_ERROR;
    return clg_fail(status, "[runtime] %s got %s (%d) from the driver, expected success", what, cl_name(code), code);
}
