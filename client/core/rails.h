// Assigns the partitions of one shard to its rails (lanes): pins them by load, and repins them when
// rails open and close.
//
// A partition's load in bytes is the size of its tables plus the data of its records. It is halved
// whenever pins are computed, so that older traffic counts less.
//
// **Thread safety**: one owner at a time.
//
// Invariants:
//  1. While a rail is up, every partition is pinned to a rail that is up.
//  2. Pins change only in Up(), Down() and Balance(), and no more than needed for an even load:
//     partitions of a rail that goes down, and those that a new rail takes over from fuller ones.
//  3. The same calls give the same pins.
#ifndef VERBENA_CLIENT_CORE_RAILS_H_
#define VERBENA_CLIENT_CORE_RAILS_H_

#include <cstdint>
#include <vector>

namespace verbena::client {

class RailPins {
 public:
  // The rail of a partition. A new or forgotten partition is pinned to the emptiest rail that is
  // up.
  uint32_t Of(uint32_t partition);
  void Forget(uint32_t partition);
  // Cheap: called once per record. Ignored for a partition that is not pinned.
  void Add(uint32_t partition, uint64_t bytes) {
    if (partition < pins_.size()) pins_[partition].load += bytes;
  }
  // A lane of that rail has opened, or is dead.
  void Up(uint32_t rail);
  void Down(uint32_t rail);
  // Moves pins if the fullest rail has over a quarter more load than the emptiest.
  void Balance();

  bool up(uint32_t rail) const { return rail < rails_.size() && rails_[rail].up; }
  uint64_t load(uint32_t rail) const;  // sum of the partitions pinned to it

 private:
  struct Pin {
    bool used = false;
    uint32_t rail = 0;
    uint64_t load = 0;
  };
  struct Rail {
    bool up = false;
    uint64_t load = 0;  // used while pins are computed
  };

  // The emptiest rail that is up; null: none is up.
  Rail* Emptiest();
  uint32_t NumberOf(const Rail* rail) const { return static_cast<uint32_t>(rail - rails_.data()); }
  // Computes pins: first for partitions on rails that are not up, then from the fullest to the
  // emptiest rail while that makes them more even. In both cases the heaviest partitions move
  // first.
  void Rearrange();

  std::vector<Pin> pins_;  // by partition
  std::vector<Rail> rails_;
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_CORE_RAILS_H_
