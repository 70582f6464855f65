/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_CPU_FLOAT_MODE_H
#define TWI_CPU_FLOAT_MODE_H
/*
 * The floating-point mode in which all arithmetic of results holds: to nearest even, denormals are kept, nothing is
 * trapped. A caller's thread may have another one (a library that is linked with -ffast-math flushes denormals), on
 * which no bit may depend: other threads and ranks compute parts of the same result. Of the calling thread; begin and
 * end are a pair, and enclose calls of functions, since compilers move arithmetic past them.
 */
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

typedef struct twi_float_mode {
    unsigned saved;
} twi_float_mode_t;

static inline twi_float_mode_t twi_float_mode_begin(void)
{
    twi_float_mode_t mode = {0};
#if defined(__x86_64__)
    enum { MXCSR_DEFAULT = 0x1f80 }; /* nearest, no flush, all masked */
    mode.saved = _mm_getcsr();
    _mm_setcsr(MXCSR_DEFAULT);
#endif
    return mode;
}

static inline void twi_float_mode_end(twi_float_mode_t mode)
{
#if defined(__x86_64__)
    _mm_setcsr(mode.saved);
#else
    (void)mode;
#endif
}

#endif
