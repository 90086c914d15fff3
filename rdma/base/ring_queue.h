// A first-in first-out queue that allocates only when it grows beyond its largest size so far.
//
// std::deque allocates and frees blocks in steady use, which the data path must not do.
//
// **Thread safety**: one thread.
#ifndef VERBENA_RDMA_BASE_RING_QUEUE_H_
#define VERBENA_RDMA_BASE_RING_QUEUE_H_

#include <cstddef>
#include <utility>
#include <vector>

namespace verbena::rdma {

template <typename T>
class RingQueue {
 public:
  explicit RingQueue(size_t initial_capacity = 64) {
    size_t capacity = 1;
    while (capacity < initial_capacity) capacity *= 2;
    items_.resize(capacity);
  }

  bool empty() const { return head_ == tail_; }
  size_t size() const { return tail_ - head_; }

  void push(T item) {
    if (size() == items_.size()) Grow();
    items_[tail_++ & (items_.size() - 1)] = std::move(item);
  }
  T& front() { return items_[head_ & (items_.size() - 1)]; }
  T pop() { return std::move(items_[head_++ & (items_.size() - 1)]); }

  // Removes the items for which `drop` is true; keeps the order of the rest.
  template <typename Predicate>
  void RemoveIf(Predicate drop) {
    const size_t count = size();
    for (size_t i = 0; i < count; ++i) {
      T item = pop();
      if (!drop(item)) push(std::move(item));
    }
  }

 private:
  void Grow() {
    std::vector<T> larger(items_.size() * 2);
    const size_t count = size();
    for (size_t i = 0; i < count; ++i) larger[i] = pop();
    items_ = std::move(larger);
    head_ = 0;
    tail_ = count;
  }

  std::vector<T> items_;  // a power of two
  size_t head_ = 0;       // both only increase; the difference is the size
  size_t tail_ = 0;
};

}  // namespace verbena::rdma

#endif  // VERBENA_RDMA_BASE_RING_QUEUE_H_
