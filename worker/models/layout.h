// The parameters of a model: dense tensors, which lie in one contiguous arena of floats, and
// embedding tables, whose rows are fetched by key.
//
// **Thread safety**: immutable once made.
//
// Invariants:
//  1. Every tensor starts at a multiple of 64 bytes, so ranges pushed and pulled stay aligned.
#ifndef VERBENA_WORKER_MODELS_LAYOUT_H_
#define VERBENA_WORKER_MODELS_LAYOUT_H_

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
  // Adds up the negated gradients of all workers (sgd of rate 1, no mean), whatever trains the
  // model: for numbers that workers share.
  bool counter = false;
  // The options that give the dimensions, for errors; empty, or "" for one: none does.
  std::vector<std::string> sizes = {};

  uint64_t elements() const {
    uint64_t n = 1;
    for (uint64_t d : shape) n *= d;
    return n;
  }
};

// Rows of `dim` floats by 64-bit key. A row without a push has its initial value, a pure function
// of the run's seed and the key.
struct EmbeddingTable {
  std::string name;
  uint32_t dim = 0;
  Tensor::Initial initial = Tensor::Initial::kZeros;
  double scale = 0;       // as of a tensor
  std::string size = "";  // the option that gives `dim`, for errors; empty: none does alone
};

class Layout {
 public:
  Layout() = default;
  explicit Layout(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {
    for (const Tensor& tensor : tensors_) Place(tensor);
  }
  // With one tensor more; the others stay where they are.
  Layout With(Tensor tensor) const {
    Layout with = *this;
    with.Place(tensor);
    with.tensors_.push_back(std::move(tensor));
    return with;
  }

  size_t size() const { return tensors_.size(); }
  const Tensor& operator[](size_t i) const { return tensors_[i]; }
  uint64_t offset(size_t i) const { return offsets_[i]; }  // floats
  uint64_t floats() const { return floats_; }              // of the whole arena

 private:
  static constexpr uint64_t kAlign = 64 / sizeof(float);
  void Place(const Tensor& tensor) {
    offsets_.push_back(floats_);
    floats_ += (tensor.elements() + kAlign - 1) / kAlign * kAlign;
  }

  std::vector<Tensor> tensors_;
  std::vector<uint64_t> offsets_;
  uint64_t floats_ = 0;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_MODELS_LAYOUT_H_
