/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_KERNELS_H
#define TWI_GEMM_KERNELS_H
/*
 * The registry of inner kernels. A kernel multiplies a panel of A (mr rows) with a panel of B (nr
 * columns) over some steps of k, and keeps the sums in a tile that it is handed back for the next
 * steps. Every element of a tile has one fixed order of operations, which depends on k alone: not on
 * how many rows matter, nor on where k is cut into calls.
 *
 * Panels, of elements of the row's lane, 64-byte aligned:
 *     A   [k/ka][mr][ka]     ka neighbours of k of one row, then the next row
 *     B   [k/kb][nr][kb]
 * k is padded to whole steps of ks with zeros, which add nothing. ka and kb divide ks.
 */
#include <stdbool.h>
#include <stdint.h>

#include "gemm/epilogue.h"

/* What a product multiplies; the value is also the number of a bit in `serves`. */
typedef enum twi_gemm_kind { TWI_GEMM_F32, TWI_GEMM_BF16, TWI_GEMM_F16, TWI_GEMM_S8, TWI_GEMM_KINDS } twi_gemm_kind_t;

/* Bytes of an element of the matrices of a kind. */
static inline int twi_gemm_kind_bytes(twi_gemm_kind_t kind)
{
    return kind == TWI_GEMM_F32 ? 4 : kind == TWI_GEMM_S8 ? 1 : 2;
}

/* fp32, bf16, fp16 or int8. */
const char *twi_gemm_kind_name(twi_gemm_kind_t kind);

/* Elements of a panel. Sums are int32 for S8, S16 and U8, and fp32 for the others. */
typedef enum twi_gemm_lane {
    TWI_LANE_F32,
    TWI_LANE_BF16,
    TWI_LANE_S8,
    TWI_LANE_S16, /* int8, widened */
    /*
     * A holds int8 + 128 as bytes without sign, B int8. The kernel takes off what that adds to every sum of a column;
     * see `excess` of a call.
     */
    TWI_LANE_U8,
    /*
     * fp16 as the exact sum of two bf16: `hi` has the sign and the top 8 bits of the significand, `lo`
     * the rest; lo of an infinity or NaN is 0. A step is two planes, all of hi and then all of lo:
     * A [k/ks][2][ks/ka][mr][ka], B [k/ks][2][ks/kb][nr][kb].
     */
    TWI_LANE_F16X2,
} twi_gemm_lane_t;

enum {
    TWI_KERNEL_FLUSH = 1,   /* denormal bf16 factors count as zero, and denormal sums become zero */
    TWI_KERNEL_VNNI = 2,    /* needs twi_cpu_vnni() besides its level */
    TWI_KERNEL_AMX = 4,     /* between twi_gemm_tiles_begin and _end of the calling thread */
    TWI_KERNEL_WIDENS = 8,  /* takes B also as it is stored, and makes lanes of it in registers */
    TWI_KERNEL_SCALES = 16, /* the same of int8 weights with scales */
};

/* Lines at one distance, to be prefetched. */
typedef struct twi_gemm_touch {
    const char *at;
    int64_t step; /* bytes */
    int n;
    int write; /* they will be written */
} twi_gemm_touch_t;

/* Rows that have their sums and wait for their epilogue: some of a part during the steps for each panel of a call. */
typedef struct twi_gemm_ready {
    const twi_gemm_part_t *part; /* NULL: none */
    int row, rows;               /* the first one; for each panel */
    const void *sums;            /* of that row; those for the next panel are acc_step bytes later */
    const twi_gemm_epilogue_t *epilogue;
    twi_gemm_row_fn *finish; /* of a row */
    /* Output is 16 bits, without x3: kernels finish rows themselves, and call `finish` for NaNs and similar only. */
    bool cast;      /* and there are no addends */
    bool add;       /* it is bf16, and there are addends, whose rows have as many elements as those of the part */
} twi_gemm_ready_t; /* of TWI_GEMM_ROW_COLS columns, which are also those of its sums */

/*
 * Of int8 weights: a row of scales, and one of offsets, for each group of k, as elements of a stored panel lie: those of
 * a column kb times. 64-byte aligned.
 */
typedef struct twi_gemm_scales {
    const float *scale, *offset; /* the first row; no offsets: NULL */
    int64_t group, group_left;   /* of k, in units of kb: of each row, and of the first one */
} twi_gemm_scales_t;

/*
 * Lines of 64 bytes of a stored panel that become what the kernel multiplies: fp16 lanes F16X2 for later calls, and
 * int8 bf16, also for this call, from any step of it to the last one: each step is made before it is used.
 */
typedef struct twi_gemm_make {
    const void *from;         /* the first one */
    uint16_t *panel;          /* all of it, 64-byte aligned */
    int64_t first, lines;     /* 0: none */
    twi_gemm_scales_t scales; /* of int8, whose lines are kb of k */
} twi_gemm_make_t;

/*
 * One call: a panel of A, or for kernels with TWI_KERNEL_AMX several whole ones, each with the same panel of B. `acc`
 * is [mr][nr], 64-byte aligned.
 */
typedef struct twi_gemm_call {
    const void *a, *b;
    int64_t panels;   /* of A, 1 or more */
    int64_t a_step;   /* bytes from a panel to the next */
    int64_t acc_step; /* bytes between their sums; 0: all have one place, and are finished before the next */
    bool stored;      /* b is not lanes yet but elements in the same places: of `kind`, or int8 if there are `scales` */
    twi_gemm_kind_t kind;     /* of the product, if b is stored: for kernels with TWI_KERNEL_WIDENS */
    twi_gemm_scales_t scales; /* for kernels with TWI_KERNEL_SCALES; scale NULL: none */
    void *acc;
    /*
     * For lanes U8: 128 times the sum of each column of b, [nr], 64-byte aligned. The first call with a b leaves it
     * there, later ones take it from there, as excess_known says. NULL: nobody wants it.
     */
    int32_t *excess;
    bool excess_known;
    int64_t steps;  /* of ks; may be 0 */
    int64_t far;    /* of them, the last ones: their b need not stay in the first-level cache for the next call */
    int rows;       /* 1..mr: of which the sums are wanted; the other rows of acc are left in any state */
    int accumulate; /* 0: acc is written, 1: added to */
    /* Lines that will be used right after the last steps: prefetched on the way, evenly. */
    const twi_gemm_touch_t *touch; /* n_touch ranges, none of them empty, of touch_lines lines in all */
    int n_touch;
    int touch_lines;
    /*
     * Work for the vector unit, which kernels with TWI_KERNEL_AMX do between their products, evenly, in calls with
     * steps: `ready` a row at a time, which may be rows of the panel before in this call, and `make` a line at a time,
     * if their lanes are F16X2 or BF16; what this call itself uses is made only if it has one panel of A. A product has
     * to wait for it only if there is much of it in one place. Anything else goes through aside(aside_arg), which is
     * called n_aside times and may use anything but tile registers.
     */
    twi_gemm_ready_t ready;
    twi_gemm_make_t make;
    void (*aside)(void *arg);
    void *aside_arg;
    int n_aside;
    /*
     * What comes from far memory and is used a while later, in this call or the next ones: brought nearer on
     * the way, or not, as the kernel likes. May be no memory at all.
     */
    const void *ahead;
    int64_t ahead_bytes;
} twi_gemm_call_t;

/*
 * Limits of scales and offsets with which a kernel whose lanes are fp32 can round int8 weights to bf16 in registers: no
 * result overflows, is denormal, or a zero below zero. Offsets may also be 0. Others and fp16 have no limits.
 */
#define TWI_SCALES_LEAST 0x1p-90f
#define TWI_SCALES_MOST 0x1p80f
#define TWI_OFFSETS_LEAST 0x1p-20f /* of their magnitudes */
#define TWI_OFFSETS_MOST 0x1p20f

typedef void twi_gemm_kernel_fn(const twi_gemm_call_t *call);

typedef struct twi_gemm_kernel {
    const char *name;
    twi_isa_t isa;
    twi_gemm_lane_t lane;
    unsigned serves; /* bits of twi_gemm_kind_t */
    int mr, nr, ks, ka, kb;
    unsigned flags;
    twi_gemm_kernel_fn *run;
} twi_gemm_kernel_t;

#define TWI_GEMM_MR_MAX 32
#define TWI_GEMM_NR_MAX 64

extern const twi_gemm_kernel_t twi_gemm_kernels[];
extern const int twi_gemm_n_kernels;

#define TW_KERNEL(name, ISA, LANE, SERVES, MR, NR, KS, KA, KB, FLAGS) twi_gemm_kernel_fn name;
#include "gemm/kernels.def"
#undef TW_KERNEL

/* Whether the machine and the level allow the row. */
int twi_gemm_kernel_usable(const twi_gemm_kernel_t *kernel, twi_isa_t level);

/*
 * Whether a usable kernel gives the right sums of a small product of a kind that it serves (kernels_check.c). False:
 * there is no memory to try it.
 */
bool twi_gemm_kernel_try(const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind, bool *works_out);

/*
 * The best usable row for a kind at a level: the last one of the highest ISA that works, for which it is tried before
 * its first use in a process, unless TILEWIRE_SELF_TEST is 0; one for whose trial there is no memory is taken on trust.
 * The same one every time. There always is a row: portable ones are the definition.
 */
const twi_gemm_kernel_t *twi_gemm_kernel_find(twi_gemm_kind_t kind, twi_isa_t level);

/* A row of tw_info for each kind: the kernel in use. False past the end. */
bool twi_gemm_kernel_row(unsigned index, tw_info_row_t *row_out);

/* Bytes of an element of a panel: of both planes together for F16X2. */
static inline int twi_gemm_lane_bytes(twi_gemm_lane_t lane)
{
    switch (lane) {
    case TWI_LANE_F32:
    case TWI_LANE_F16X2:
        return 4;
    case TWI_LANE_BF16:
    case TWI_LANE_S16:
        return 2;
    default:
        return 1;
    }
}

/*
 * Tile registers of the calling thread: configured before the first call of a kernel with
 * TWI_KERNEL_AMX, given back after the last one so that switching threads does not save them.
 */
void twi_gemm_tiles_begin(void);
void twi_gemm_tiles_end(void);

#endif
