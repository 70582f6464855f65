/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_SPAWN_ENV_H
#define TOOLS_SPAWN_ENV_H
/* What a rank finds in its environment: who it is, and where the ranks meet. */
#include <stdbool.h>

typedef struct spawn_env {
    int size;
    int listen_fd;   /* a listening loopback socket for rank 0; -1 once closed */
    int listen_port; /* its port: TILEWIRE_PORT */
    int master_port; /* another free port: MASTER_PORT */
    char token[33];  /* "" if the environment has one already */
} spawn_env_t;

/* Opens the socket, finds the port, makes the token. Prints the error and returns false on failure. */
bool spawn_env_open(spawn_env_t *env_out, const char *who, int size);

/* In the child: sets the variables of `rank` and keeps the socket open for rank 0 only. */
bool spawn_env_enter(const spawn_env_t *env, int rank);

/* Closes the launcher's copy of the socket. May be called twice. */
void spawn_env_close(spawn_env_t *env);

/* Pins the calling process to share `index` of `n` shares of its allowed CPUs. */
bool spawn_bind(int index, int n);

#endif
