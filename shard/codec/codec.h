// Codecs of values in records (proto/wire/record.h): encode f32 to fewer bytes, and decode.
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. Results are equal bit for bit on every instruction set, in both directions.
//  2. Decoding reads exactly PayloadBytes(), or RowBytes(), bytes. Every byte string of that length
//     decodes to numbers; NaN and Inf are kept.
//  3. A block with a NaN or an Inf decodes to a block with a NaN (bf16, f16: the number itself is
//     not finite), so that `non_finite` of the table detects it.
#ifndef VERBENA_SHARD_CODEC_CODEC_H_
#define VERBENA_SHARD_CODEC_CODEC_H_

#include <cstddef>

#include "proto/wire/record.h"
#include "shard/codec/isa.h"

namespace verbena::codec {

using shard::Isa;

// Encodes n numbers to PayloadBytes(type, n) bytes. `type` is kBf16, kF16 or a block type; `out` is
// aligned to 4. With a `residual`, the encoded value is in[i] + residual[i], and residual[i]
// becomes that value less the decoded one: error feedback (Seide et al. 2014; Karimireddy et al.
// 2019, arXiv:1901.09847). If the new residual is not finite, the old one stays.
void Encode(Isa isa, ElementType type, const float* in, float* residual, std::byte* out, size_t n);

// Decodes numbers [first, first + n) of a payload of any type; first is a multiple of kCodecBlock.
void Decode(Isa isa, ElementType type, const std::byte* payload, size_t first, float* out,
            size_t n);

// Encodes and decodes a row of `dim` numbers, to and from RowBytes(type, dim), independent of other
// rows. `type` is kF32, kBf16, kF16, kInt8, kE4m3 or kE5m2; `out` is aligned to 4.
void EncodeRow(Isa isa, ElementType type, const float* in, std::byte* out, size_t dim);
void DecodeRow(Isa isa, ElementType type, const std::byte* in, float* out, size_t dim);

// Whether Encode() could have made a payload of n numbers, apart from the numbers' values: checks
// the places of kTopK. For the other types all bytes are valid.
bool WellFormed(ElementType type, const std::byte* payload, size_t n);

}  // namespace verbena::codec

#endif  // VERBENA_SHARD_CODEC_CODEC_H_
