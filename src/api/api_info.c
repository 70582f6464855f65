/* SPDX-License-Identifier: Apache-2.0 */
/* tw_info: the rows of all layers, one table after the other. Any thread. */
#include <stdbool.h>

#include "base/config.h"
#include "base/status.h"
#include "cpu/cpu.h"
#include "gemm/kernels.h"

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define VERSION_TEXT TEXT(TW_VERSION_MAJOR) "." TEXT(TW_VERSION_MINOR) "." TEXT(TW_VERSION_PATCH)

static const tw_info_row_t version_rows[] = {
    {"version", "tilewire", VERSION_TEXT, "version of the library"},
    {"version", "api", TEXT(TW_VERSION_MAJOR) "." TEXT(TW_VERSION_MINOR), "version of the C interface"},
};

static const tw_info_row_t transport_rows[] = {
#define TW_TRANSPORT(name, NAME, help) {"transport", #name, "built in", help},
#include "base/transports.def"
#undef TW_TRANSPORT
};

static bool version_row(unsigned index, tw_info_row_t *row_out)
{
    if (index >= sizeof version_rows / sizeof version_rows[0])
        return false;
    *row_out = version_rows[index];
    return true;
}

static bool transport_row(unsigned index, tw_info_row_t *row_out)
{
    if (index >= sizeof transport_rows / sizeof transport_rows[0])
        return false;
    *row_out = transport_rows[index];
    return true;
}

typedef bool (*row_fn)(unsigned index, tw_info_row_t *row_out);

/* In the order of `tilewire info`. */
static const row_fn tables[] = {version_row, twi_cpu_row, twi_gemm_kernel_row, transport_row, twi_config_row};

static unsigned count_rows(row_fn table)
{
    tw_info_row_t row;
    unsigned n = 0;
    while (table(n, &row))
        n++;
    return n;
}

tw_status_t tw_info(unsigned index, tw_info_row_t *row_out)
{
    TW_REQUIRE(row_out != NULL, "row_out is NULL");
    unsigned rest = index;
    for (unsigned t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        if (tables[t](rest, row_out))
            return TW_OK;
        rest -= count_rows(tables[t]);
    }
    return twi_fail(TW_ERR_NOT_FOUND, "index %u is past the last row", index);
}
