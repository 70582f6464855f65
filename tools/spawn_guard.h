/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_SPAWN_GUARD_H
#define TOOLS_SPAWN_GUARD_H
/*
 * A small process that outlives a launcher which is killed without warning, and then kills the
 * process groups of its ranks: also of programs that a rank started.
 */
#include <stdbool.h>
#include <sys/types.h>

typedef struct spawn_guard {
    pid_t pid;
    int fd; /* our end; the guard acts when it closes */
} spawn_guard_t;

/* Starts the guard of at most n groups; false if that is not possible. */
bool spawn_guard_open(spawn_guard_t *guard_out, int n);
/* Group `pgid` is to be guarded. */
void spawn_guard_add(const spawn_guard_t *guard, pid_t pgid);
/* Group `pgid` has ended; to be called before its leader is reaped, while the number is still its own. */
void spawn_guard_remove(const spawn_guard_t *guard, pid_t pgid);
/* Ends the guard and with it whatever groups it still has. */
void spawn_guard_close(spawn_guard_t *guard);

#endif
