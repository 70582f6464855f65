/* SPDX-License-Identifier: Apache-2.0 */
/* The table of collectives. */
#include "coll/coll.h"

const twi_coll_t *twi_coll_find(uint32_t command)
{
    static const twi_coll_t *const all[] = {
#define TW_COLL(name) &twi_coll_##name,
#include "coll/colls.def"
#undef TW_COLL
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i]->command == command)
            return all[i];
    return NULL;
}
