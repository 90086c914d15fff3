// Intrusive lists, and a pool of objects with stable addresses: queues without allocations.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_CORE_LIST_H_
#define VERBENA_CLIENT_CORE_LIST_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace verbena::client {

template <typename T>
struct Links {
  T* previous = nullptr;
  T* next = nullptr;
};

// A doubly linked list through member `kLinks` of T.
template <typename T, Links<T> T::*kLinks>
class List {
 public:
  bool empty() const { return head_ == nullptr; }
  size_t size() const { return size_; }
  T* front() const { return head_; }
  T* back() const { return tail_; }
  static T* Next(const T* item) { return (item->*kLinks).next; }
  static T* Previous(const T* item) { return (item->*kLinks).previous; }

  void PushBack(T* item) { InsertBefore(nullptr, item); }
  void PushFront(T* item) { InsertBefore(head_, item); }

  // `before` == nullptr: inserts at the end.
  void InsertBefore(T* before, T* item) {
    T* previous = before == nullptr ? tail_ : (before->*kLinks).previous;
    item->*kLinks = {previous, before};
    (previous == nullptr ? head_ : (previous->*kLinks).next) = item;
    (before == nullptr ? tail_ : (before->*kLinks).previous) = item;
    ++size_;
  }

  void Remove(T* item) {
    const Links<T> links = item->*kLinks;
    (links.previous == nullptr ? head_ : (links.previous->*kLinks).next) = links.next;
    (links.next == nullptr ? tail_ : (links.next->*kLinks).previous) = links.previous;
    item->*kLinks = {};
    --size_;
  }

 private:
  T* head_ = nullptr;
  T* tail_ = nullptr;
  size_t size_ = 0;
};

// Objects with stable address and index. Allocates only if more objects are in use than ever
// before.
template <typename T>
class Pool {
 public:
  T* Get() {
    if (free_.empty()) {
      items_.emplace_back();
      items_.back().index = static_cast<uint32_t>(items_.size() - 1);
      free_.reserve(items_.size());
      return &items_.back();
    }
    T* item = free_.back();
    free_.pop_back();
    return item;
  }
  void Put(T* item) { free_.push_back(item); }
  T* At(size_t index) { return index < items_.size() ? &items_[index] : nullptr; }
  const T* At(size_t index) const { return index < items_.size() ? &items_[index] : nullptr; }
  size_t in_use() const { return items_.size() - free_.size(); }

 private:
  std::deque<T> items_;
  std::vector<T*> free_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_LIST_H_
