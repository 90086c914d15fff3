// Interface of a worker's GPU kernels, for the host and the device: names, parameters and the
// structs in device memory.
//
// A kernel is found in KernelImage() by its name and launched in the shape that launch_plan.h
// gives; any other number of blocks, of kThreadsPerBlock threads each, works too. Its parameters,
// in order:
//
//   conversions  (const In* in, Out* out, uint64_t n)
//                out[i] = in[i], converted as client/include/verbena/half.h does.
//   gather       (const Segment* segments, const uint32_t* tiles, uint32_t tile_count, Out* bucket)
//                bucket[s.first + i] = tensor[i] for each segment s.
//   scatter      (const Segment* segments, const uint32_t* tiles, uint32_t tile_count,
//                 const In* bucket)
//                tensor[i] = bucket[s.first + i] for each segment s.
//   sum          (SumInputs inputs, uint32_t count, float* out, uint64_t n)
//                out[i] = ((in0[i] + in1[i]) + in2[i]) + ..., `count` of them, 1 to kMostInputs.
//   text model   described in text_elements.h; its results equal the CPU's except for rounding.
//
// Addresses are of device memory (or of host memory that the device may access), multiples of their
// element's size; kernels are fastest where both sides are equally far from a multiple of 16 bytes
// (8, of 16-bit numbers that are converted).
//
// **Thread safety**: constants and plain structs. A launch's buffers may not change while it runs.
//
// Invariants:
//  1. Inputs and outputs do not overlap, except that the sum's `out` may be one of its inputs.
//  2. Results equal the CPU's bit for bit, except for two cases. The text model's differ by
//     rounding. A sum that is a NaN is a NaN on both, but the CPU keeps an operand's payload and a
//     GPU has one NaN.
//  3. Copies of 16 bits (kGather16 and kScatter16) and of 32 bits do not interpret the bits.
#ifndef VERBENA_WORKER_CUDA_KERNEL_TYPES_H_
#define VERBENA_WORKER_CUDA_KERNEL_TYPES_H_

#include <cstdint>

namespace verbena::worker {

inline constexpr char kF32ToBF16[] = "verbena_f32_to_bf16";
inline constexpr char kBF16ToF32[] = "verbena_bf16_to_f32";
inline constexpr char kF32ToF16[] = "verbena_f32_to_f16";
inline constexpr char kF16ToF32[] = "verbena_f16_to_f32";
inline constexpr char kGather32[] = "verbena_gather_32";
inline constexpr char kGather16[] = "verbena_gather_16";
inline constexpr char kGatherF32ToBF16[] = "verbena_gather_f32_to_bf16";
inline constexpr char kGatherBF16ToF32[] = "verbena_gather_bf16_to_f32";
inline constexpr char kScatter32[] = "verbena_scatter_32";
inline constexpr char kScatter16[] = "verbena_scatter_16";
inline constexpr char kScatterF32ToBF16[] = "verbena_scatter_f32_to_bf16";
inline constexpr char kScatterBF16ToF32[] = "verbena_scatter_bf16_to_f32";
inline constexpr char kSum[] = "verbena_sum_f32";
inline constexpr char kScale[] = "verbena_scale_f32";
inline constexpr char kColumnSums[] = "verbena_column_sums";
inline constexpr char kTextEmbed[] = "verbena_text_embed";
inline constexpr char kTextHidden[] = "verbena_text_hidden";
inline constexpr char kTextSoftmax[] = "verbena_text_softmax";
inline constexpr char kTextOutputGradient[] = "verbena_text_output_gradient";
inline constexpr char kTextHiddenGradient[] = "verbena_text_hidden_gradient";
inline constexpr char kTextAddByByte[] = "verbena_text_add_by_byte";

inline constexpr const char* kKernelNames[] = {
    kF32ToBF16,    kBF16ToF32,   kF32ToF16,           kF16ToF32,
    kGather32,     kGather16,    kGatherF32ToBF16,    kGatherBF16ToF32,
    kScatter32,    kScatter16,   kScatterF32ToBF16,   kScatterBF16ToF32,
    kSum,          kScale,       kColumnSums,         kTextEmbed,
    kTextHidden,   kTextSoftmax, kTextOutputGradient, kTextHiddenGradient,
    kTextAddByByte};

inline constexpr uint32_t kThreadsPerBlock = 256;
// So many blocks fit on a multiprocessor at once: this limits the compiler to 64 registers a
// thread. Further blocks would wait for the first ones to end. Four reads of 16 bytes by each of
// these threads are 64 KiB in flight. That is about three times the need of memory of 3 TB/s at a
// latency of 1 us.
inline constexpr uint32_t kBlocksPerMultiprocessor = 4;
// The threads that move one tile: a warp, which needs no barrier to go from one tensor to the next.
inline constexpr uint32_t kThreadsPerTile = 32;
inline constexpr uint32_t kMostInputs = 16;

// A piece of a tensor and its place in a bucket.
struct Segment {
  uint64_t address;  // of its first element, in device memory
  uint64_t first;    // the bucket's element where it begins
  uint64_t count;    // elements
};

// A table of T tiles is an array of segments and T + 1 indices into it: tile t is the segments from
// tiles[t] up to tiles[t + 1].

struct SumInputs {
  const float* at[kMostInputs];
};

// Text model: a batch of `rows` examples in the softmax.
struct TextSoftmax {
  float* p;                 // [rows, 256]: output of the hidden layer; becomes the probabilities
  const float* c2;          // [256]
  const float* skip;        // [256, 256]
  const float* add;         // [rows, 256]; null: zeros
  const uint8_t* contexts;  // [rows, context]
  const uint8_t* targets;   // [rows]
  float* losses;            // [rows], in nats
  uint32_t rows;
  uint32_t context;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_CUDA_KERNEL_TYPES_H_
