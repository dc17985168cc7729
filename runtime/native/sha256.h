/* SHA-256 (FIPS 180-4). */
#ifndef PALLASC_SHA256_H
#define PALLASC_SHA256_H

#include <stddef.h>
#include <stdint.h>

void sha256(const void *data, size_t size, uint8_t digest[32]);

#endif
