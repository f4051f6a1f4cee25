/* In libclgraft.so only: names the interpreter whose packages the embedded Python is to use, before it starts.
 * That is CLGRAFT_PYTHON, or the one that built the library. In a process that already runs Python nothing is done. */
#include <stdlib.h>
#include <unistd.h>
#include <wchar.h>

extern int Py_IsInitialized(void);
extern void Py_SetProgramName(const wchar_t *name);

static wchar_t program[4096];

__attribute__((constructor)) static void choose_interpreter(void) {
    const char *name = getenv("CLGRAFT_PYTHON");
    if (!name || access(name, X_OK)) name = CLG_PYTHON;
    if (Py_IsInitialized() || access(name, X_OK)) return;
    size_t length = mbstowcs(program, name, sizeof program / sizeof *program - 1);
    if (length != (size_t)-1 && length > 0) Py_SetProgramName(program);
}
