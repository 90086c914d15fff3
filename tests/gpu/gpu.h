// A GPU as the tests of this folder use it, real or imitated: numbers put on it and fetched from
// it, streams, and waiting for enqueued work.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_GPU_GPU_H_
#define VERBENA_TESTS_GPU_GPU_H_

#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "rdma/memory/cuda/cuda_context.h"
#include "rdma/memory/cuda/cuda_device.h"
#include "rdma/memory/device.h"
#include "rdma/memory/memory.h"
#include "tests/support/good.h"

namespace verbena::test {

class Gpu {
 public:
  using Direction = rdma::Device::Direction;

  explicit Gpu(int ordinal = 0) : device_(Value(rdma::OpenCudaDevice(ordinal))) {}

  const std::shared_ptr<rdma::Device>& device() const { return device_; }
  bool imitated() const { return device_->name().find("(Fake GPU ") != std::string::npos; }
  std::shared_ptr<rdma::MemoryBlock> Allocate(size_t bytes) {
    return Value(rdma::MemoryBlock::AllocateOn(device_, bytes));
  }

  void Write(void* to, const void* from, size_t bytes) {
    const auto pinned = Pinned(bytes);
    std::memcpy(pinned->data(), from, bytes);
    Copy(Direction::kToDevice, pinned->data(), static_cast<std::byte*>(to), bytes);
  }
  void Read(void* to, const void* from, size_t bytes) {
    const auto pinned = Pinned(bytes);
    Copy(Direction::kToHost, static_cast<const std::byte*>(from), pinned->data(), bytes);
    std::memcpy(to, pinned->data(), bytes);
  }
  // `values` on the device, `offset` elements behind the beginning of a block that ends with them.
  template <typename T>
  std::shared_ptr<rdma::MemoryBlock> Upload(const std::vector<T>& values, size_t offset = 0) {
    auto block = Allocate((offset + values.size()) * sizeof(T));
    Write(block->data() + offset * sizeof(T), values.data(), values.size() * sizeof(T));
    return block;
  }
  template <typename T>
  std::vector<T> Download(const void* from, size_t n) {
    std::vector<T> values(n);
    Read(values.data(), from, n * sizeof(T));
    return values;
  }

  // Until everything enqueued in the stream so far is done.
  void Wait(uintptr_t stream) {
    const auto mark = Value(device_->MarkStream(stream));
    Until([&] { return Value(mark->Passed()); });
  }
  // A stream of the caller's own, as PyTorch makes them; gone with the context at the latest.
  uintptr_t MakeStream() {
    rdma::cuda::CudaContext* const context = rdma::ContextOf(device_.get());
    const rdma::cuda::CudaContext::Scope scope(context);
    rdma::cuda::Stream stream = nullptr;
    REQUIRE(context->api().cuStreamCreate(&stream, rdma::cuda::kStreamNonBlocking) == 0);
    return reinterpret_cast<uintptr_t>(stream);
  }
  void DropStream(uintptr_t stream) {
    rdma::cuda::CudaContext* const context = rdma::ContextOf(device_.get());
    const rdma::cuda::CudaContext::Scope scope(context);
    CHECK(context->api().cuStreamDestroy_v2(reinterpret_cast<rdma::cuda::Stream>(stream)) == 0);
  }

  void Copy(Direction direction, const std::byte* from, std::byte* to, size_t bytes) {
    const uint64_t number = Value(device_->StartCopy(direction, from, to, bytes));
    Until([&] { return Value(device_->CopiesDone(direction)) >= number; });
  }

 private:
  std::shared_ptr<rdma::MemoryBlock> Pinned(size_t bytes) {
    return Value(rdma::MemoryBlock::AllocatePinned(device_, bytes, "gpu_test"));
  }
  // Bounded, for a GPU that hangs.
  template <typename Condition>
  void Until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      std::this_thread::yield();
    }
  }

  const std::shared_ptr<rdma::Device> device_;
};

}  // namespace verbena::test

#endif  // VERBENA_TESTS_GPU_GPU_H_
