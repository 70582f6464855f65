/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank, size and address from the environment of a launcher. The variables are read at each call,
 * because one process may be handed from launcher to launcher. To add a launcher, add a row.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/status.h"
#include "bootstrap/boot_net.h"
#include "bootstrap/bootstrap.h"

#define PORT_UNUSED 1 /* stands in an address that nobody will connect to */

static const struct launcher {
    const char *rank;
    const char *size;
} launchers[] = {
    {"RANK", "WORLD_SIZE"},                           /* torchrun, tilewire run */
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, /* Open MPI */
    {"PMI_RANK", "PMI_SIZE"},                         /* MPICH, Intel MPI */
    {"SLURM_PROCID", "SLURM_NTASKS"},                 /* srun */
};

/* NULL when unset or empty. */
static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static tw_status_t number(const char *name, int low, int high, int *value_out)
{
    const char *text = variable(name);
    TW_REQUIRE(text != NULL, "environment variable %s is not set", name);
    long long value = 0;
    for (const char *p = text; *p != '\0'; p++) {
        TW_REQUIRE(*p >= '0' && *p <= '9' && p - text < 10,
                   "environment variable %s has the value \"%.64s\": use %d..%d", name, text, low, high);
        value = value * 10 + (*p - '0');
    }
    TW_REQUIRE(value >= low && value <= high, "environment variable %s has the value \"%.64s\": use %d..%d", name, text,
               low, high);
    *value_out = (int)value;
    return TW_OK;
}

static const struct launcher *find_launcher(void)
{
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        if (variable(launchers[i].rank) != NULL)
            return &launchers[i];
    }
    return NULL;
}

/* torchrun's own store listens on MASTER_PORT. */
static tw_status_t find_port(int size, int *port_out)
{
    *port_out = (int)twi_config()->port;
    if (*port_out != 0)
        return TW_OK;
    *port_out = PORT_UNUSED;
    if (size == 1 && variable("MASTER_PORT") == NULL)
        return TW_OK;
    const bool torchrun = variable("TORCHELASTIC_RUN_ID") != NULL || variable("TORCHELASTIC_USE_AGENT_STORE") != NULL;
    TW_REQUIRE(variable("MASTER_PORT") != NULL, "environment variable MASTER_PORT is not set, nor is TILEWIRE_PORT");
    TW_TRY(number("MASTER_PORT", 1, torchrun ? 65534 : 65535, port_out));
    *port_out += torchrun;
    return TW_OK;
}

tw_status_t twi_boot_env(int *rank_out, int *size_out, char *address_out)
{
    const struct launcher *launcher = find_launcher();
    TW_REQUIRE(launcher != NULL,
               "environment variable RANK is not set, nor is that of another launcher "
               "(OMPI_COMM_WORLD_RANK, PMI_RANK, SLURM_PROCID): start the program by a launcher or give an address");
    int rank, size, port;
    TW_TRY(number(launcher->size, 1, TWI_RANKS_MAX, &size));
    TW_TRY(number(launcher->rank, 0, size - 1, &rank));
    TW_TRY(find_port(size, &port));
    const char *host = variable("MASTER_ADDR");
    if (host == NULL)
        host = "127.0.0.1";
    TW_REQUIRE(strlen(host) < TWI_BOOT_HOST_MAX, "environment variable MASTER_ADDR has %zu characters: \"%.64s...\"",
               strlen(host), host);
    const bool v6 = strchr(host, ':') != NULL && host[0] != '[';
    (void)snprintf(address_out, TWI_BOOT_ADDRESS_MAX, v6 ? "tcp://[%s]:%d" : "tcp://%s:%d", host, port);
    *rank_out = rank;
    *size_out = size;
    return TW_OK;
}
