// Free memory of any sizes in a few large blocks; adjacent extents are merged.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_EXECUTOR_FREE_EXTENTS_H_
#define VERBENA_SERVER_EXECUTOR_FREE_EXTENTS_H_

#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace verbena::server {

class FreeExtents {
 public:
  struct Extent {
    std::byte* data = nullptr;
    size_t bytes = 0;
    void* owner = nullptr;  // the block that it lies in
  };

  void Add(const Extent& extent);
  // `bytes`: a multiple of `unit`. Takes it from the smallest extent that has so much; else as many
  // units as the largest extent has. No data: no extent has room for one unit.
  Extent Take(size_t bytes, size_t unit);
  // All that lies in a block.
  void Forget(const void* owner);

  size_t count() const { return by_address_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  using ByAddress = std::map<std::byte*, Extent>;
  void Insert(const Extent& extent);
  ByAddress::iterator Erase(ByAddress::iterator it);

  ByAddress by_address_;
  std::set<std::pair<size_t, std::byte*>> by_size_;
  size_t bytes_ = 0;
};

}  // namespace verbena::server

#endif  // VERBENA_SERVER_EXECUTOR_FREE_EXTENTS_H_
