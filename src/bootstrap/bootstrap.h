/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BOOTSTRAP_BOOTSTRAP_H
#define TWI_BOOTSTRAP_BOOTSTRAP_H
/*
 * Rendezvous: how ranks that know nothing of each other but an address exchange a few blobs. One
 * primitive, allgather, because that is all that making a communicator needs and all that a caller's
 * callback can offer. Used only while a communicator is made.
 */
#include <stdint.h>
#include <tilewire/tilewire.h>

#define TWI_RANKS_MAX 1024      /* ranks of a communicator; bounds arrays on the stack everywhere */
#define TWI_BOOT_BLOB_MAX 65536 /* bytes a rank may contribute to one allgather */

typedef struct twi_boot twi_boot_t;

typedef struct twi_boot_ops {
    /* Collective. `in` has `bytes` bytes, `out` receives size * bytes. */
    tw_status_t (*allgather)(twi_boot_t *boot, const void *in, void *out, size_t bytes);
    void (*close)(twi_boot_t *boot);
} twi_boot_ops_t;

/* Base of every implementation: the first member of its own struct. */
struct twi_boot {
    const twi_boot_ops_t *ops;
    int rank;
    int size;
};

typedef struct twi_boot_args {
    const char *address; /* "tcp://host:port", "env://" or NULL */
    int rank;
    int size;
    const char *name;  /* tells concurrent creations on one address apart; "" when the caller gave none */
    const char *token; /* NULL: none */
    tw_allgather_fn allgather;
    void *allgather_user;
    uint64_t timeout_ns;
} twi_boot_args_t;

/* Picks the implementation by address (env:// is resolved here) and meets the other ranks. */
tw_status_t twi_boot_open(const twi_boot_args_t *args, twi_boot_t **boot_out);

static inline tw_status_t twi_boot_allgather(twi_boot_t *boot, const void *in, void *out, size_t bytes)
{
    return boot->ops->allgather(boot, in, out, bytes);
}

/* NULL is fine. */
void twi_boot_close(twi_boot_t *boot);

/* The implementations, one file each. */
tw_status_t twi_boot_open_callback(const twi_boot_args_t *args, twi_boot_t **boot_out);
tw_status_t twi_boot_open_tcp(const twi_boot_args_t *args, twi_boot_t **boot_out);

/*
 * Fills rank, size and address from the environment of a launcher. `address_out` has room for
 * TWI_BOOT_ADDRESS_MAX bytes.
 */
#define TWI_BOOT_ADDRESS_MAX 300
tw_status_t twi_boot_env(int *rank_out, int *size_out, char *address_out);

#endif
