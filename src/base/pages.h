/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_PAGES_H
#define TWI_BASE_PAGES_H
/* Private memory straight from the system: zeroed, touched by nobody yet, on huge pages if it can be. Any thread. */
#include <stdbool.h>
#include <stddef.h>

/* *bytes: how many are wanted, and then mapped: whole pages, from 2 MiB on whole huge ones. NULL: no memory. */
void *twi_pages_map(size_t *bytes);

/* What twi_pages_map returned, and its bytes; NULL is fine. */
void twi_pages_unmap(void *memory, size_t bytes);

/* Such memory that is kept and grows; zero it first. */
typedef struct twi_buffer {
    char *data;
    size_t bytes;
} twi_buffer_t;

/* At least `bytes`, touched by nobody yet if it grew; what was there is lost then. False: no memory. */
bool twi_buffer_grow(twi_buffer_t *buffer, size_t bytes);

/* The same on a huge page from 256 KiB on: for the few that are read again and again. */
bool twi_buffer_grow_huge(twi_buffer_t *buffer, size_t bytes);

void twi_buffer_drop(twi_buffer_t *buffer);

#endif
