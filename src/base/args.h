/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_ARGS_H
#define TWI_BASE_ARGS_H
/*
 * Argument structs that may grow: each starts with size_t struct_size. A caller built against an
 * older header passes a shorter struct (the rest is zero), one built against a newer header passes a
 * longer one, which is accepted as long as what we do not know is zero.
 */
#include <stddef.h>
#include <tilewire/tilewire.h>

#define TWI_ARGS_MAX 65536 /* a struct_size above this is taken for garbage */

/*
 * Copies the caller's struct at `src` into `dst` of dst_size bytes and sets its struct_size to
 * dst_size. `what` is the name of the argument, for the message. TW_ERR_ARGUMENT when src is NULL,
 * when its struct_size makes no sense, or when it has non-zero bytes that this library does not know;
 * dst is untouched then.
 */
tw_status_t twi_args_copy(void *dst, size_t dst_size, const void *src, const char *what);

#endif
