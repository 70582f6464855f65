/* SPDX-License-Identifier: Apache-2.0 */
/* Loads and releases the tile configuration of the calling thread. */
#include <immintrin.h>

#include "gemm/x86/amx_tiles.h"

void twi_gemm_tiles_load__amx(const void *config)
{
    __asm__ volatile("" ::: "memory"); /* the compiler knows of the first 8 bytes only */
    _tile_loadconfig(config);
}

void twi_gemm_tiles_release__amx(void)
{
    _tile_release();
}
