/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_OPS_SHARED_EXPERT_H
#define TWI_OPS_SHARED_EXPERT_H
/* The shared expert of the grouped operators: a product of its own, whose strips fill the gaps. */
#include "ops/products.h"

/* Plans it, if there is one; n_strips of `products` is 0 otherwise. */
tw_status_t twi_shared_create(twi_op_t *op, twi_products_t *products);
/* Fills the last queue. */
void twi_shared_queue(twi_queue_t *queue, const twi_products_t *products, twi_run_fn *run);
void twi_shared_run(twi_op_t *op, twi_products_t *products, int64_t item, twi_op_worker_t *worker);

#endif
