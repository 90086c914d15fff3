// A stream of a real GPU that is held: work that is enqueued behind waits until it is released,
// however fast the GPU is. (The imitation's own controls hold its streams: tests/rdma.)
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_GPU_HELD_STREAM_H_
#define VERBENA_TESTS_GPU_HELD_STREAM_H_

#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <future>

#include "tests/gpu/gpu.h"

namespace verbena::test {

class HeldStream {
 public:
  HeldStream(Gpu* gpu, uintptr_t stream) {
    // Only these tests call the host from a stream, so the library does not load the symbol.
    using LaunchHostFunction = int (*)(rdma::cuda::Stream, void (*)(void*), void*);
    const char* const named = std::getenv("VERBENA_CUDA_DRIVER");
    void* const driver = dlopen(named != nullptr ? named : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    REQUIRE(driver != nullptr);
    const auto launch = reinterpret_cast<LaunchHostFunction>(dlsym(driver, "cuLaunchHostFunc"));
    REQUIRE(launch != nullptr);
    const rdma::cuda::CudaContext::Scope scope(rdma::ContextOf(gpu->device().get()));
    REQUIRE(launch(reinterpret_cast<rdma::cuda::Stream>(stream), Hold, this) == 0);
  }
  ~HeldStream() { Release(); }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

  // Returns once the stream goes on.
  void Release() {
    if (released_) return;
    released_ = true;
    release_.set_value();
    gone_.get_future().wait();
  }

 private:
  // On a thread of the driver's. Bounded, for a test that fails.
  static void Hold(void* self) {
    auto* const held = static_cast<HeldStream*>(self);
    held->release_.get_future().wait_for(std::chrono::seconds(30));
    held->gone_.set_value();
  }

  std::promise<void> release_, gone_;
  bool released_ = false;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_GPU_HELD_STREAM_H_
