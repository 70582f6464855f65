/* SPDX-License-Identifier: Apache-2.0 */
/* The workers of a communicator: a team, and the memory that it keeps between products. */
#include "api/comm.h"

tw_status_t twi_comm_team(tw_comm_t *comm, twi_team_t **team_out)
{
    if (!comm->team)
        TW_TRY(twi_team_create(0, comm->transport->cpu_mates, &comm->team));
    *team_out = comm->team;
    return TW_OK;
}

tw_status_t twi_comm_space(tw_comm_t *comm, twi_gemm_space_t **space_out)
{
    twi_team_t *team = NULL;
    TW_TRY(twi_comm_team(comm, &team));
    if (!comm->space)
        TW_TRY(twi_gemm_space_create(team, &comm->space));
    *space_out = comm->space;
    return TW_OK;
}

tw_status_t twi_comm_enter(tw_comm_t *comm)
{
    if (atomic_exchange(&comm->computing, true))
        return twi_fail(TW_ERR_STATE,
                        "comm: another thread is inside a product, an operator, tw_dynamic_quant or tw_trace_start on "
                        "communicator '%s'",
                        tw_comm_name(comm));
    return TW_OK;
}

void twi_comm_leave(tw_comm_t *comm)
{
    atomic_store(&comm->computing, false);
}

void twi_comm_workers_end(tw_comm_t *comm)
{
    twi_gemm_space_destroy(comm->space);
    twi_team_destroy(comm->team);
    comm->space = NULL;
    comm->team = NULL;
}
