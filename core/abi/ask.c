/* Libraries that are built on this one call functions of their Python modules. */
#include <stdbool.h>

#include "errors.h"
#include "planner.h"

typedef struct clg_asked {
    clg_receive receive;
    void *with;
    bool answered;
} clg_asked;

static void pass_on(void *with, const void *answer, uint64_t bytes) {
    clg_asked *asked = with;
    asked->answered = true;
    asked->receive(asked->with, answer, bytes);
}

clg_status clg_ask(const char *module, const void *question, uint64_t bytes, clg_receive receive, void *with) {
    if (!module || !receive || (!question && bytes))
        return clg_fail(CLG_INVALID_ARGUMENT, "[ask] got %s NULL, expected all of them",
                        !module    ? "module"
                        : !receive ? "receive"
                                   : "question");
    clg_asked asked = {receive, with, false};
    clg_status status = clg_py_ask(module, question ? question : "", bytes, pass_on, &asked);
    /* where no interpreter could be started, cffi returns 0 */
    if (status == CLG_OK && !asked.answered)
        status = clg_fail(CLG_PLANNER_ERROR,
                          "[ask] the planner could not be started; expected a Python with clgraft and what it"
                          " needs (CLGRAFT_PYTHON names one); stderr has the reason");
    return status;
}
