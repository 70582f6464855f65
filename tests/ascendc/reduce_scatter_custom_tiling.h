// SPDX-License-Identifier: Apache-2.0
#ifndef TILEWIRE_TESTS_REDUCE_SCATTER_CUSTOM_TILING_H
#define TILEWIRE_TESTS_REDUCE_SCATTER_CUSTOM_TILING_H
// The operator header of the reduce-scatter kernels under test: their tiling data.
#include <ascendc/kernel_operator.h>

struct ReduceScatterCustomTilingData {
    Mc2InitTiling mc2InitTiling;
    Mc2CcTiling reduceScatterCcTiling;
};

#endif
