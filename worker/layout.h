// The tensors of a model and where each lies in one contiguous arena of floats.
//
// **Thread safety**: immutable once made.
//
// Invariants:
//  1. Every tensor starts at a multiple of 64 bytes, so ranges pushed and pulled stay aligned.
#ifndef VERBENA_WORKER_LAYOUT_H_
#define VERBENA_WORKER_LAYOUT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace verbena::worker {

struct Tensor {
  enum class Initial : uint8_t { kZeros, kUniform, kNormal };

  std::string name;
  std::vector<uint64_t> shape;
  Initial initial = Initial::kZeros;
  double scale = 0;  // kUniform: [-scale, scale); kNormal: the standard deviation

  uint64_t elements() const {
    uint64_t n = 1;
    for (uint64_t d : shape) n *= d;
    return n;
  }
};

class Layout {
 public:
  Layout() = default;
  explicit Layout(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {
    for (const Tensor& tensor : tensors_) {
      offsets_.push_back(floats_);
      floats_ += (tensor.elements() + kAlign - 1) / kAlign * kAlign;
    }
  }

  size_t size() const { return tensors_.size(); }
  const Tensor& operator[](size_t i) const { return tensors_[i]; }
  uint64_t offset(size_t i) const { return offsets_[i]; }  // floats
  uint64_t floats() const { return floats_; }              // of the whole arena

 private:
  static constexpr uint64_t kAlign = 64 / sizeof(float);
  std::vector<Tensor> tensors_;
  std::vector<uint64_t> offsets_;
  uint64_t floats_ = 0;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_LAYOUT_H_
