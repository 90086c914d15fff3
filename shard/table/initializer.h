// Initial parameters: a pure function of the initializer and of the element's index, in a table or
// in the row of a key. So they are the same on every machine, and independent of a table's
// distribution.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SHARD_TABLE_INITIALIZER_H_
#define VERBENA_SHARD_TABLE_INITIALIZER_H_

#include <cstddef>
#include <cstdint>

#include "verbena/v1/cluster.pb.h"

namespace verbena::shard {

// Whether all values are 0 with all bits clear.
bool IsZero(const v1::Initializer& initializer);

// Writes elements first, first + 1, ..., first + n - 1 of the table.
void Initialize(const v1::Initializer& initializer, uint64_t first, float* out, size_t n);

// Writes the row of a key of an embedding table. The key goes into the seed: as an index, key and
// element together would not fit 64 bits.
void InitializeRow(const v1::Initializer& initializer, uint64_t key, float* out, size_t dim);

// The standard normal value below which a fraction `p` of the distribution lies; 0 < p < 1.
// Uses only + - * / and sqrt, which IEEE 754 defines to the bit: library log() differs between
// machines.
double InverseNormal(double p);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_INITIALIZER_H_
