/* In libclgraft.so only: names the interpreter whose packages the embedded Python uses, before it starts.
 * That is CLGRAFT_PYTHON, or else the one that built the library; embedded.py refuses one that does not fit.
 * In a process that already runs Python nothing is done. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <wchar.h>

extern int Py_IsInitialized(void);
extern void Py_SetProgramName(const wchar_t *name);

static wchar_t program[4096];
static char named[4096];

/* What CLGRAFT_PYTHON says, if it chose the interpreter; else an empty text. */
const char *clg_interpreter_named(void) { return named; }

__attribute__((constructor)) static void choose_interpreter(void) {
    const char *name = getenv("CLGRAFT_PYTHON");
    if (Py_IsInitialized()) return;
    if (name && *name) {
        snprintf(named, sizeof named, "%s", name);
    } else {
        name = CLG_PYTHON;
        if (access(name, X_OK)) return;
    }
    size_t length = mbstowcs(program, name, sizeof program / sizeof *program - 1);
    if (length != (size_t)-1 && length > 0) Py_SetProgramName(program);
}
