/* SPDX-License-Identifier: Apache-2.0 */
/* The opaque tiling structs: written on the host, read by the objects of the kernel. */
#include <string.h>

#include "api/hccl_session.h"
#include "base/args.h"
#include "coll/coll.h"

#define INIT_MAGIC 0x7477696e69743031u /* "twinit01" */
#define CC_MAGIC 0x7463u

typedef struct init_tiling {
    uint64_t magic;
    uint64_t unused[7];
} init_tiling_t;

typedef struct cc_tiling {
    uint16_t magic;
    uint8_t op_type;
    uint8_t reduce_type;
    uint8_t dst_type;
    uint8_t src_type;
    uint8_t step_size;
    uint8_t skip_local_rank_copy;
    uint8_t skip_buffer_window_copy;
    uint8_t debug_mode;
    uint16_t queue_num;
    uint16_t comm_block_num;
    uint8_t comm_engine;
    uint8_t unused[9];
    char group_name[128];
    char alg_config[128];
} cc_tiling_t;

_Static_assert(sizeof(init_tiling_t) == 64 && sizeof(tw_hccl_init_tiling_t) == 64, "Mc2InitTiling has 64 bytes");
_Static_assert(sizeof(cc_tiling_t) == 280 && sizeof(tw_hccl_cc_tiling_t) == 280, "Mc2CcTiling has 280 bytes");

static bool known(uint32_t op_type)
{
    return op_type == TW_HCCL_CMD_BATCH_WRITE || twi_coll_find(op_type) != NULL;
}

static tw_status_t check(const tw_hccl_tiling_args_t *a)
{
    TW_REQUIRE(a->group_name, "group_name is NULL");
    TW_REQUIRE(strnlen(a->group_name, 128) < 128, "group_name '%.20s...' has more than 127 bytes", a->group_name);
    TW_REQUIRE(!a->alg_config || strnlen(a->alg_config, 128) < 128, "alg_config '%.20s...' has more than 127 bytes",
               a->alg_config);
    TW_REQUIRE(known(a->op_type), "op_type %u is not a kind of task that is supported", a->op_type);
    TW_REQUIRE(a->skip_local_rank_copy <= 1, "skip_local_rank_copy %u, must be 0 or 1", a->skip_local_rank_copy);
    TW_REQUIRE(a->skip_buffer_window_copy <= 2, "skip_buffer_window_copy %u, must be 0, 1 or 2",
               a->skip_buffer_window_copy);
    TW_REQUIRE(a->reduce_type < TW_HCCL_REDUCE_RESERVED, "reduce_type %u is reserved", a->reduce_type);
    return TW_OK;
}

tw_status_t tw_hccl_tiling(const tw_hccl_tiling_args_t *user_args, tw_hccl_init_tiling_t *init_out,
                           tw_hccl_cc_tiling_t *cc_out)
{
    tw_hccl_tiling_args_t a;
    TW_TRY(twi_args_copy(&a, sizeof a, user_args, "args"));
    TW_TRY(check(&a));
    if (init_out) {
        const init_tiling_t init = {.magic = INIT_MAGIC};
        memcpy(init_out, &init, sizeof init);
    }
    if (cc_out) {
        cc_tiling_t cc = {
            .magic = CC_MAGIC,
            .op_type = (uint8_t)a.op_type,
            .reduce_type = (uint8_t)a.reduce_type,
            .dst_type = a.dst_type,
            .src_type = a.src_type,
            .step_size = a.step_size,
            .skip_local_rank_copy = a.skip_local_rank_copy,
            .skip_buffer_window_copy = a.skip_buffer_window_copy,
            .debug_mode = a.debug_mode,
            .queue_num = a.queue_num,
            .comm_block_num = a.comm_block_num,
            .comm_engine = a.comm_engine,
        };
        memcpy(cc.group_name, a.group_name, strlen(a.group_name));
        if (a.alg_config)
            memcpy(cc.alg_config, a.alg_config, strlen(a.alg_config));
        memcpy(cc_out, &cc, sizeof cc);
    }
    return TW_OK;
}

tw_status_t twi_hccl_read_init_tiling(const void *tiling)
{
    init_tiling_t init;
    memcpy(&init, tiling, sizeof init);
    TW_REQUIRE(init.magic == INIT_MAGIC, "init_tiling was not filled by the host");
    return TW_OK;
}

tw_status_t twi_hccl_read_cc_tiling(const void *tiling, twi_hccl_tiling_t *out)
{
    cc_tiling_t cc;
    memcpy(&cc, tiling, sizeof cc);
    TW_REQUIRE(cc.magic == CC_MAGIC, "cc_tiling was not filled by the host");
    TW_REQUIRE(known(cc.op_type), "cc_tiling has op_type %u, which is no kind of task that is supported", cc.op_type);
    TW_REQUIRE(memchr(cc.group_name, '\0', sizeof cc.group_name), "cc_tiling: the group name does not end");
    *out = (twi_hccl_tiling_t){
        .op_type = cc.op_type,
        .skip_own = cc.skip_local_rank_copy != 0,
        .queue_num = cc.queue_num,
        .group_name = (const char *)tiling + offsetof(cc_tiling_t, group_name),
    };
    return TW_OK;
}
