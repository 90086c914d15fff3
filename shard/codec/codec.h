// What travels in fewer bytes: f32 encoded as records carry them (proto/record.h), and back.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. The same bits on every instruction set, both ways.
//  2. Decoding reads PayloadBytes(), or RowBytes(), and nothing else, whatever the bytes are: every
//  byte string of
//     that length decodes to some numbers, of which a NaN or an Inf is what it always is.
//  3. A block with a NaN or an Inf has a NaN in it when it is decoded (bf16, f16: the number itself
//     is not finite), so that `non_finite` of the table sees it.
#ifndef VERBENA_SHARD_CODEC_CODEC_H_
#define VERBENA_SHARD_CODEC_CODEC_H_

#include <cstddef>

#include "proto/record.h"
#include "shard/codec/isa.h"

namespace verbena::codec {

using shard::Isa;

// Encodes n numbers to PayloadBytes(type, n) bytes; `type` is kBf16, kF16 or one in blocks, `out`
// aligned to 4. With a `residual` what is encoded is in[i] + residual[i], and residual[i] becomes
// that less what it decodes to: error feedback (Seide et al. 2014; Karimireddy et al. 2019,
// arXiv:1901.09847). Where that is not finite the residual stays.
void Encode(Isa isa, ElementType type, const float* in, float* residual, std::byte* out, size_t n);

// Numbers [first, first + n) of a payload; first is a multiple of kCodecBlock. Of any type.
void Decode(Isa isa, ElementType type, const std::byte* payload, size_t first, float* out,
            size_t n);

// The same of a row of `dim` numbers, to and from RowBytes(type, dim), without regard to others.
// `type` is kF32, kBf16, kF16, kInt8, kE4m3 or kE5m2, `out` aligned to 4.
void EncodeRow(Isa isa, ElementType type, const float* in, std::byte* out, size_t dim);
void DecodeRow(Isa isa, ElementType type, const std::byte* in, float* out, size_t dim);

// Whether a payload of n numbers is one that Encode() could have made, as far as that is not a
// matter of its numbers: of kTopK the places. Of the others any bytes are.
bool WellFormed(ElementType type, const std::byte* payload, size_t n);

}  // namespace verbena::codec

#endif  // VERBENA_SHARD_CODEC_CODEC_H_
