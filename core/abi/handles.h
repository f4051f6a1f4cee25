/* A handle is a number that names a slot; it is looked up and never followed as a pointer. */
#ifndef CLGRAFT_HANDLES_H
#define CLGRAFT_HANDLES_H

#include <stdbool.h>

#include "clgraft.h"

enum { CLG_KIND_CONTEXT = 1, CLG_KIND_PLAN = 2, CLG_KIND_ARRAY = 3, CLG_KIND_EVENT = 4, CLG_KIND_SESSION = 5 };
typedef void (*clg_free_fn)(void *object);
void *clg_handle_new(uint32_t kind, void *object, clg_free_fn release);
void *clg_handle_acquire(const void *handle, uint32_t kind); /* NULL, with a message, if this library did not make it */
void clg_handle_drop(void *object);                          /* after acquire */
void *clg_handle_object(const void *handle);                 /* of a handle that is acquired */
void clg_handle_return(const void *handle);                  /* the same, by the handle: faster */
clg_status clg_handle_destroy(const void *handle, uint32_t kind);
void clg_handle_destroy_if(uint32_t kind, bool (*test)(void *object, void *with), void *with);

/* How many forks this process is away from the one that loaded the library. Objects of another count are unusable. */
unsigned clg_fork_count(void);

#endif
