/* A call of clgraft.h, with the status that it must return and a word of its message. */
#ifndef MISUSE_H
#define MISUSE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clgraft.h"

static int failures, checks;

static void expect(const char *what, clg_status got, clg_status expected, const char *word) {
    checks++;
    const char *message = clg_last_error();
    int good = got == expected && (expected == CLG_OK || (strlen(message) > 10 && strstr(message, word)));
    if (!good) failures++;
    printf("%s %s: status %d (expected %d): %s\n", good ? "ok  " : "FAIL", what, (int)got, (int)expected,
           got ? message : "");
}
#define REFUSED(call, status, word) expect(#call, call, status, word)

#endif
