/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_SANITIZE_H
#define TWI_BASE_SANITIZE_H
/* Whether this is compiled for AddressSanitizer, by gcc or clang. */

#if defined(__SANITIZE_ADDRESS__)
#define TWI_ASAN 1
#elif defined(__has_feature)
#define TWI_ASAN __has_feature(address_sanitizer)
#else
#define TWI_ASAN 0
#endif

#endif
