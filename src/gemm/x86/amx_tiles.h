/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_X86_AMX_TILES_H
#define TWI_GEMM_X86_AMX_TILES_H
/* The two instructions around AMX kernels. Only where the level is TWI_ISA_AMX. */

/* `config` is 64 bytes, 64-byte aligned, constant. */
void twi_gemm_tiles_load__amx(const void *config);
void twi_gemm_tiles_release__amx(void);

#endif
