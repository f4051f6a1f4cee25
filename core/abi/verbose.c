/* CLGRAFT_VERBOSE=plan,run: a line for every plan and every run, on stderr or appended to the
 * file CLGRAFT_VERBOSE_FILE:
 *     clgraft,run,IMPLEMENTATION,PROBLEM,MILLISECONDS
 * A graph is one run; each of its problems has the line of a plan when the graph is planned, with either word.
 * The word `start` adds two fields: when it began, in milliseconds of the monotonic clock, and the thread. The
 * variables are read when the library is loaded; where they are not set a run reads one flag. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "planner.h"
#include "verbose.h"

uint32_t clg_verbose_flags;
static FILE *output;

static bool holds(const char *text, const char *word) {
    size_t length = strlen(word);
    for (const char *at = text; *at; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == length && !strncmp(at, word, length)) return true;
    return false;
}

__attribute__((constructor)) static void read_variables(void) {
    const char *text = getenv("CLGRAFT_VERBOSE"), *path = getenv("CLGRAFT_VERBOSE_FILE");
    if (!text) return;
    uint32_t flags = (holds(text, "plan") ? CLG_VERBOSE_PLAN : 0) | (holds(text, "run") ? CLG_VERBOSE_RUN : 0);
    if (flags && path && *path) {
        output = fopen(path, "ae"); /* appended to: several processes may share it, and a line is one write */
        if (output)
            setvbuf(output, NULL, _IOLBF, 1 << 16);
        else
            fprintf(stderr, "clgraft: CLGRAFT_VERBOSE_FILE=%s cannot be written to: stderr is used\n", path);
    }
    if (flags) flags |= CLG_VERBOSE_PROBLEM | (holds(text, "start") ? CLG_VERBOSE_START : 0);
    clg_verbose_flags = flags;
}

double clg_verbose_begin(uint32_t what) {
    if (!(clg_verbose_flags & what)) return 0;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

void clg_verbose_end(uint32_t what, const char *label, double begin) {
    if (!(clg_verbose_flags & what) || begin == 0) return;
    clg_verbose_line(what, label, begin, clg_verbose_begin(what) - begin);
}

void clg_verbose_line(uint32_t what, const char *label, double begin, double took) {
    if (!(clg_verbose_flags & what) || begin == 0) return;
    FILE *file = output ? output : stderr;
    const char *kind = what == CLG_VERBOSE_RUN ? "run" : "plan";
    if (clg_verbose_flags & CLG_VERBOSE_START)
        fprintf(file, "clgraft,%s,%s,%.3f,%.3f,%ld\n", kind, label, took, begin, (long)syscall(SYS_gettid));
    else
        fprintf(file, "clgraft,%s,%s,%.3f\n", kind, label, took);
}
