/* What CLGRAFT_VERBOSE asked for when the library was loaded: CLG_VERBOSE_PLAN and so on, usually 0. */
#ifndef CLGRAFT_VERBOSE_H
#define CLGRAFT_VERBOSE_H

#include <stdint.h>

extern uint32_t clg_verbose_flags;

#endif
