/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_OPS_SHARED_EXPERT_H
#define TWI_OPS_SHARED_EXPERT_H
/* The shared expert of the grouped operators: a product of its own, whose strips fill the gaps. Kept in op->shared. */
#include "ops/products.h"

/* Plans it, if there is one. */
tw_status_t twi_shared_create(twi_op_t *op);
/* Fills a queue, which stays empty if there is none. */
void twi_shared_queue(const twi_op_t *op, twi_queue_t *queue);
/* Before a run. */
void twi_shared_reset(twi_op_t *op);

#endif
