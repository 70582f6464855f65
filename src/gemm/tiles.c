/* SPDX-License-Identifier: Apache-2.0 */
/* The one tile configuration that all AMX kernels share: eight tiles of 16 rows of 64 bytes. */
#include "gemm/kernels.h"
#if defined(__x86_64__)
#include "gemm/x86/amx_tiles.h"

enum { TILES = 8, TILE_ROWS = 16, TILE_ROW_BYTES = 64 };

/* As the instruction reads it. */
typedef struct tile_config {
    uint8_t palette, start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config_t;

_Static_assert(sizeof(tile_config_t) == 64, "the format has 64 bytes");

#define EIGHT(x) x, x, x, x, x, x, x, x
_Static_assert(sizeof((uint8_t[]){EIGHT(0)}) == TILES, "all tiles are set");

static const tile_config_t tile_config __attribute__((aligned(64))) = {
    .palette = 1,
    .row_bytes = {EIGHT(TILE_ROW_BYTES)},
    .rows = {EIGHT(TILE_ROWS)},
};

void twi_gemm_tiles_begin(void)
{
    twi_gemm_tiles_load__amx(&tile_config);
}

void twi_gemm_tiles_end(void)
{
    twi_gemm_tiles_release__amx();
}
#else
void twi_gemm_tiles_begin(void) {}

void twi_gemm_tiles_end(void) {}
#endif
