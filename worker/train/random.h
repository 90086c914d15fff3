// A small seeded generator whose numbers are the same on every platform and standard library.
//
// **Thread safety**: one thread per object.
#ifndef VERBENA_WORKER_TRAIN_RANDOM_H_
#define VERBENA_WORKER_TRAIN_RANDOM_H_

#include <cstdint>

namespace verbena::worker {

// A bijection of 64-bit numbers whose every output bit depends on every input bit: the finalizer of
// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
inline uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// SplitMix64.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15u;
    return Mix(state_);
  }
  // In [0, bound), bound > 0: multiply and shift (Lemire, 2019); its bias is below 2^-32 for every
  // bound that fits in 32 bits.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }  // [0, 1)

 private:
  uint64_t state_;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_RANDOM_H_
