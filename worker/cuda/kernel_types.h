// Interface of a worker's GPU kernels, for the host and the device: names, parameters and the
// structs in device memory.
//
// A kernel is found in KernelImage() by its name. It works with any number of blocks, of
// kThreadsPerBlock threads each. text_elements.h has its parameters. Addresses are of device
// memory, multiples of their element's size.
//
// **Thread safety**: constants and plain structs. A launch's buffers may not change while it runs.
//
// Invariants:
//  1. Inputs and outputs do not overlap.
//  2. Results equal the CPU's except for rounding.
#ifndef VERBENA_WORKER_CUDA_KERNEL_TYPES_H_
#define VERBENA_WORKER_CUDA_KERNEL_TYPES_H_

#include <cstdint>

namespace verbena::worker {

inline constexpr char kScale[] = "verbena_scale_f32";
inline constexpr char kColumnSums[] = "verbena_column_sums";
inline constexpr char kTextEmbed[] = "verbena_text_embed";
inline constexpr char kTextHidden[] = "verbena_text_hidden";
inline constexpr char kTextSoftmax[] = "verbena_text_softmax";
inline constexpr char kTextOutputGradient[] = "verbena_text_output_gradient";
inline constexpr char kTextHiddenGradient[] = "verbena_text_hidden_gradient";
inline constexpr char kTextAddByByte[] = "verbena_text_add_by_byte";

inline constexpr const char* kKernelNames[] = {
    kScale,       kColumnSums,         kTextEmbed,          kTextHidden,
    kTextSoftmax, kTextOutputGradient, kTextHiddenGradient, kTextAddByByte};

inline constexpr uint32_t kThreadsPerBlock = 256;
// So many blocks fit on a multiprocessor at once: this limits the compiler to 64 registers a
// thread. Further blocks would wait for the first ones to end.
inline constexpr uint32_t kBlocksPerMultiprocessor = 4;
// The threads of one row of the softmax: a warp.
inline constexpr uint32_t kThreadsPerRow = 32;

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
