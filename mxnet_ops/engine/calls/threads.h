/* Threads that share the parts of a loop. */
#ifndef CLGRAFT_MXNET_THREADS_H
#define CLGRAFT_MXNET_THREADS_H

#include <stdint.h>

/* Runs body for each part, on several threads; returns when all are done. */
void clg_mx_parallel(void (*body)(void *with, uint32_t part), void *with, uint32_t parts);
void clg_mx_forget_threads(void); /* in a child process, which has none of them */

#endif
