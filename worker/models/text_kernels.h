// The arithmetic of the text model, compiled once for each instruction set worth having.
//
//     x = [E[b_1] ... E[b_K]]         embedded context bytes, b_K the nearest
//     h = tanh(x W1 + c1)             hidden layer
//     p = softmax(h W2 + S[b_K] + c2 + a)   S: logits from the last byte alone; a: from the caller
//
// **Thread safety**: pure functions over caller memory; a workspace is for one thread at a time.
//
// Invariants:
//  1. text_kernels.cc holds no code but this and Eigen, whose namespace it renames per instruction
//     set: otherwise the linker could pick a wide instruction set's copy of a shared template for
//     the baseline, which then dies with SIGILL on an older machine.
#ifndef VERBENA_WORKER_MODELS_TEXT_KERNELS_H_
#define VERBENA_WORKER_MODELS_TEXT_KERNELS_H_

#include <cstddef>
#include <cstdint>

namespace verbena::worker {

inline constexpr int kTextClasses = 256;
// Rows processed at once: their activations stay in the second-level cache.
inline constexpr int kTextRows = 128;

struct TextShape {
  int context = 0;    // K, bytes
  int embedding = 0;  // floats a byte
  int hidden = 0;

  int input() const { return context * embedding; }
};

// Row-major; the gradient has the same tensors.
struct TextParameters {
  const float* embedding;  // [256, embedding]
  const float* w1;         // [input, hidden]
  const float* c1;         // [hidden]
  const float* w2;         // [hidden, 256]
  const float* skip;       // [256, 256]
  const float* c2;         // [256]
};
struct TextGradient {
  float *embedding, *w1, *c1, *w2, *skip, *c2;
};

// Scratch of kTextRows rows each, 64-byte aligned; masks are written by the caller.
struct TextWorkspace {
  float *x, *dx;      // [rows, input]
  float *h, *dh;      // [rows, hidden]
  float* p;           // [rows, 256]
  const float* mask;  // [rows, hidden]; multiplies h. Null: not at all
  const float* add;   // [rows, 256]; a. Null: zeros
};

struct TextKernels {
  const char* name;
  // Loss in nats of each of `rows` <= kTextRows examples: contexts[r * context ...] come before
  // targets[r]. Leaves probabilities in workspace.p.
  void (*forward)(const TextShape& shape, const TextParameters& parameters,
                  const TextWorkspace& workspace, const uint8_t* contexts, const uint8_t* targets,
                  int rows, float* losses);
  // After forward on the same arguments: adds scale times the losses' gradient to *gradient. Leaves
  // in workspace.p the gradient by the softmax's input, which is also the gradient by a.
  void (*backward)(const TextShape& shape, const TextParameters& parameters,
                   const TextWorkspace& workspace, const uint8_t* contexts, const uint8_t* targets,
                   int rows, float scale, const TextGradient& gradient);
};

// The best this processor runs.
const TextKernels& BestTextKernels();
// The kernels that every x86-64 (or other) processor can run.
const TextKernels& BaselineTextKernels();

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_MODELS_TEXT_KERNELS_H_
