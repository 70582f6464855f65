/* SPDX-License-Identifier: Apache-2.0 */
/* The table of collectives. */
#include "coll/coll.h"

#include <tilewire/hccl.h>

const twi_coll_t *twi_coll_find(uint32_t command)
{
    switch (command) {
#define TW_COLL(name, COMMAND, reduces) \
    case TW_HCCL_CMD_##COMMAND:         \
        return &twi_coll_##name;
#include "task/colls.def"
#undef TW_COLL
    default:
        return NULL;
    }
}
