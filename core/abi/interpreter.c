/* In libclgraft.so only: names the interpreter whose packages the embedded Python uses, before it starts.
 * That is CLGRAFT_PYTHON, or else the one that built the library; embedded.py refuses one that does not fit.
 * In a process that already runs Python nothing is done. */
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <wchar.h>

extern int Py_IsInitialized(void);
extern void Py_SetProgramName(const wchar_t *name);

static wchar_t program[4096];
static int32_t named;

/* 1 if CLGRAFT_PYTHON chose the interpreter. */
int32_t clg_interpreter_named(void) { return named; }

__attribute__((constructor)) static void choose_interpreter(void) {
    const char *name = getenv("CLGRAFT_PYTHON");
    if (Py_IsInitialized()) return;
    named = name && *name;
    if (!named) name = CLG_PYTHON;
    if (!named && access(name, X_OK)) return;
    size_t length = mbstowcs(program, name, sizeof program / sizeof *program - 1);
    if (length != (size_t)-1 && length > 0) Py_SetProgramName(program);
}
