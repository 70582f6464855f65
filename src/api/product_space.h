/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_API_PRODUCT_SPACE_H
#define TWI_API_PRODUCT_SPACE_H
/*
 * The memory of products without a communicator. Mapping pages takes longer than a small product, so the
 * process keeps one space for the next; those of large products are freed. Any thread.
 */
#include "gemm/gemm.h"

/* A space that nobody else uses, for a product on the calling thread. */
tw_status_t twi_api_space_take(const twi_gemm_plan_t *plan, twi_gemm_space_t **space_out);

/* After the run of this plan: keeps the space or frees it. */
void twi_api_space_give(const twi_gemm_plan_t *plan, twi_gemm_space_t *space);

#endif
