// SPDX-License-Identifier: Apache-2.0
#ifndef TILEWIRE_TESTS_LAYOUT_KERNELS_H
#define TILEWIRE_TESTS_LAYOUT_KERNELS_H
// The kernels that seed_main.cpp runs. The last two come from a document named at test time; both bear
// one name there, so each is a translation unit whose kernel is renamed on the compiler's command line.
#include <cstdint>

extern "C" {
void layout_whole(std::uint8_t *x, std::uint8_t *y, std::uint8_t *workspace, std::uint8_t *tiling);
void layout_tail(std::uint8_t *x, std::uint8_t *y, std::uint8_t *workspace, std::uint8_t *tiling);
void layout_three_calls(std::uint8_t *x, std::uint8_t *y, std::uint8_t *workspace, std::uint8_t *tiling);
void layout_repeat_three(std::uint8_t *x, std::uint8_t *y, std::uint8_t *workspace, std::uint8_t *tiling);
void seed_kernel_1(std::uint8_t *x, std::uint8_t *y, std::uint8_t *workspace, std::uint8_t *tiling);
void seed_kernel_2(std::uint8_t *x, std::uint8_t *y, std::uint8_t *workspace, std::uint8_t *tiling);
}

#endif
