// Initial parameters: a pure function of (initializer, element index), so they are the same however
// a table is spread over servers, and on every machine.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_SHARD_TABLE_INITIALIZER_H_
#define VERBENA_SHARD_TABLE_INITIALIZER_H_

#include <cstddef>
#include <cstdint>

#include "proto/verbena/v1/cluster.pb.h"

namespace verbena::shard {

// Writes elements first, first + 1, ..., first + n - 1 of the table.
void Initialize(const v1::Initializer& initializer, uint64_t first, float* out, size_t n);

// The standard normal value below which a fraction `p` of the distribution lies; 0 < p < 1.
// Uses only + - * / and sqrt, which IEEE 754 defines to the bit: library log() differs between
// machines.
double InverseNormal(double p);

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_TABLE_INITIALIZER_H_
