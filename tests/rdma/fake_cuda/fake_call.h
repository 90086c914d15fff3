// The begin of every function of the imitated driver: the lock, a failure that a test has ordered,
// the context that is current, whether its device is lost.
//
// **Thread safety**: a call belongs to its thread.
#ifndef VERBENA_TESTS_RDMA_FAKE_CUDA_FAKE_CALL_H_
#define VERBENA_TESTS_RDMA_FAKE_CUDA_FAKE_CALL_H_

#include <mutex>

#include "tests/rdma/fake_cuda/fake_gpu.h"

namespace verbena::rdma::cuda {

// Declared here, so that the definitions agree with the calls of the library under test.
#define FAKE_CUDA_DECLARE(name, parameters) FAKE_CUDA_EXPORT Result name parameters;
VERBENA_CUDA_FUNCTIONS(FAKE_CUDA_DECLARE)
VERBENA_CUDA_NEWER_FUNCTIONS(FAKE_CUDA_DECLARE)
VERBENA_CUDA_13_FUNCTIONS(FAKE_CUDA_DECLARE)
#undef FAKE_CUDA_DECLARE

class FakeCall {
 public:
  explicit FakeCall(const char* symbol) : gpus(FakeGpus::Get()), lock(gpus.mutex) {
    const auto ordered = gpus.failures.find(symbol);
    if (ordered == gpus.failures.end()) return;
    error = ordered->second.front();
    ordered->second.pop_front();
    if (ordered->second.empty()) gpus.failures.erase(ordered);
  }

  // Requires a current context; an error without one, or when its device is lost.
  FakeCall& NeedContext() {
    if (error != kSuccess) return *this;
    if (fake_stack.empty()) {
      error = kInvalidContext;
      return *this;
    }
    device = fake_stack.back()->device;
    error = on().lost;
    return *this;
  }
  // For calls that are not allowed while a graph is captured, except in relaxed mode.
  FakeCall& Unsafe() {
    if (error == kSuccess && gpus.captures > 0 && fake_capture_mode != kCaptureModeRelaxed) {
      ++gpus.counts.broken_captures;
      error = kStreamCaptureUnsupported;
    }
    return *this;
  }
  bool ok() const { return error == kSuccess; }
  FakeDevice& on() { return gpus.devices[static_cast<size_t>(device)]; }

  FakeGpus& gpus;
  std::unique_lock<std::recursive_mutex> lock;
  Result error = kSuccess;
  int device = -1;
};

}  // namespace verbena::rdma::cuda

#endif  // VERBENA_TESTS_RDMA_FAKE_CUDA_FAKE_CALL_H_
