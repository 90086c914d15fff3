// Which rail (lane) of one shard each partition uses: pinned by load, and pinned anew when rails
// come and go.
//
// A partition's load is what its tables hold and what its records have carried, in bytes. It is
// halved whenever pins are worked out, so that what was long ago counts less.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. While a rail is up, every partition is pinned to one that is.
//  2. Pins change in Up(), Down() and Balance() only, and no more of them than evenness takes: what
//     is pinned to a rail that goes, and what a rail that comes must take over from fuller ones.
//  3. The same calls give the same pins.
#ifndef VERBENA_CLIENT_CORE_RAILS_H_
#define VERBENA_CLIENT_CORE_RAILS_H_

#include <cstdint>
#include <vector>

namespace verbena::client {

class RailPins {
 public:
  // One that was never asked for, or forgotten, is pinned to the emptiest rail that is up.
  uint32_t Of(uint32_t partition);
  void Forget(uint32_t partition);
  // Cheap: once a record. Only of a partition that is pinned; ignored for others.
  void Add(uint32_t partition, uint64_t bytes) {
    if (partition < pins_.size()) pins_[partition].load += bytes;
  }
  // A lane of that rail is open, or dead.
  void Up(uint32_t rail);
  void Down(uint32_t rail);
  // Moves pins where the fullest rail has a quarter more than the emptiest.
  void Balance();

  bool up(uint32_t rail) const { return rail < rails_.size() && rails_[rail].up; }
  uint64_t load(uint32_t rail) const;  // of the partitions pinned to it

 private:
  struct Pin {
    bool used = false;
    uint32_t rail = 0;
    uint64_t load = 0;
  };
  struct Rail {
    bool up = false;
    uint64_t load = 0;  // while pins are worked out
  };

  // Of those that are up; nullptr: none is.
  Rail* Emptiest();
  uint32_t NumberOf(const Rail* rail) const { return static_cast<uint32_t>(rail - rails_.data()); }
  // Works out pins: partitions on rails that are not up first, then from the fullest to the
  // emptiest as long as that makes them more even; in both cases the heaviest go first.
  void Rearrange();

  std::vector<Pin> pins_;  // by partition
  std::vector<Rail> rails_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_RAILS_H_
