/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GEMM_MODEL_TILES_H
#define TEST_GEMM_MODEL_TILES_H
/*
 * Tile instructions in software (model_tiles.c), put in the place of the intrinsics. Tiles are the full size: 16 rows of
 * 64 bytes. Each thread has its own.
 */
#include <immintrin.h>

void model_loadconfig(const void *config);
void model_release(void);
void model_loadd(int to, const void *base, long stride);
void model_stored(int from, void *base, long stride);
void model_zero(int to);
void model_dpbf16ps(int dst, int src1, int src2);
void model_dpbssd(int dst, int src1, int src2);

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig(config) model_loadconfig(config)
#define _tile_release() model_release()
#define _tile_loadd(tile, base, stride) model_loadd(tile, base, stride)
#define _tile_stream_loadd(tile, base, stride) model_loadd(tile, base, stride)
#define _tile_stored(tile, base, stride) model_stored(tile, base, stride)
#define _tile_zero(tile) model_zero(tile)
#define _tile_dpbf16ps(dst, src1, src2) model_dpbf16ps(dst, src1, src2)
#define _tile_dpbssd(dst, src1, src2) model_dpbssd(dst, src1, src2)

#endif
