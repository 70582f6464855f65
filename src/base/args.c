/* SPDX-License-Identifier: Apache-2.0 */
/* The growth rule of argument structs. Pure: no state, any thread. */
#include "base/args.h"

#include <string.h>

#include "base/sizes.h"
#include "base/status.h"

tw_status_t twi_args_copy(void *dst, size_t dst_size, const void *src, const char *what)
{
    TW_REQUIRE(src != NULL, "%s is NULL", what);
    size_t size;
    memcpy(&size, src, sizeof size);
    TW_REQUIRE(size >= sizeof size && size <= TWI_ARGS_MAX && size % sizeof(void *) == 0,
               "%s.struct_size is %zu: fill %s by its INIT macro", what, size, what);
    const unsigned char *bytes = src;
    for (size_t i = dst_size; i < size; i++)
        TW_REQUIRE(bytes[i] == 0, "%s.struct_size is %zu and byte %zu is set, but this library knows %zu bytes only",
                   what, size, i, dst_size);
    memset(dst, 0, dst_size);
    memcpy(dst, src, twi_min_u64(size, dst_size));
    memcpy(dst, &dst_size, sizeof dst_size);
    return TW_OK;
}
