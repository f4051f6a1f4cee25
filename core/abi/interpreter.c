/* In libclgraft.so only: names the interpreter whose packages the embedded Python uses, before it starts.
 * That is CLGRAFT_PYTHON, or else the one that built the library; embedded.py refuses one that does not fit.
 * In a process that already runs Python nothing is done. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

extern int Py_IsInitialized(void);
extern void Py_SetProgramName(const wchar_t *name);

static wchar_t program[4096];
static int32_t named;

/* 1 if CLGRAFT_PYTHON chose the interpreter. */
int32_t clg_interpreter_named(void) { return named; }

static bool can_run(const char *name) {
    if (strchr(name, '/')) return !access(name, X_OK);
    const char *folders = getenv("PATH");
    char place[4096];
    for (const char *at = folders ? folders : ""; *at; at += strcspn(at, ":"), at += *at == ':') {
        int length = snprintf(place, sizeof place, "%.*s/%s", (int)strcspn(at, ":"), at, name);
        if (length > 0 && (size_t)length < sizeof place && !access(place, X_OK)) return true;
    }
    return false;
}

__attribute__((constructor)) static void choose_interpreter(void) {
    const char *name = getenv("CLGRAFT_PYTHON");
    if (Py_IsInitialized()) return;
    named = name && *name;
    /* Python would complain about one that is not there, in many lines in front of embedded.py's */
    if (!named || !can_run(name)) name = CLG_PYTHON;
    if (!can_run(name)) return;
    size_t length = mbstowcs(program, name, sizeof program / sizeof *program - 1);
    if (length != (size_t)-1 && length > 0) Py_SetProgramName(program);
}
