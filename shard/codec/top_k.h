// The codec top_k: for each block of 2048 numbers the 20 of greatest magnitude, with their places.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. Those of codec.h.
//  2. Among equal magnitudes the first ones are selected; the places of a block ascend.
#ifndef VERBENA_SHARD_CODEC_TOP_K_H_
#define VERBENA_SHARD_CODEC_TOP_K_H_

#include <cstddef>

#include "shard/codec/isa.h"

namespace verbena::codec {

using shard::Isa;

// Like Encode() and Decode() of codec.h.
void EncodeTopK(Isa isa, const float* in, float* residual, std::byte* out, size_t n);
void DecodeTopK(const std::byte* payload, size_t first, float* out, size_t n);

// Whether the places of the blocks of n numbers ascend, as EncodeTopK() writes them.
bool TopKAscends(const std::byte* payload, size_t n);

}  // namespace verbena::codec

#endif  // VERBENA_SHARD_CODEC_TOP_K_H_
