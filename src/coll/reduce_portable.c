/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions for any processor: 16-byte vectors, ordinary stores only. Any thread. */
#define RED_NAME portable
#define RED_ISA TWI_ISA_PORTABLE
#define RED_BYTES 16

#include "coll/reduce_kernels.h"
