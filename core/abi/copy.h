/* Copies between ordinary and pinned memory by several threads. */
#ifndef CLGRAFT_COPY_H
#define CLGRAFT_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct clg_copier *clg_copier_new(void);
void clg_copier_free(struct clg_copier *copier);
/* `pending` counts the parts that are left; they read and write memory until it is 0. */
void clg_copy_start(struct clg_copier *copier, void *to, const void *from, size_t bytes, uint32_t *pending);
bool clg_copy_done(const uint32_t *pending);
void clg_copy_wait(struct clg_copier *copier, uint32_t *pending);

#endif
