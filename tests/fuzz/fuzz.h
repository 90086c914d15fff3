// The parts of every fuzz target: libFuzzer's entry point, seeds, and checks that end the run.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_FUZZ_FUZZ_H_
#define VERBENA_TESTS_FUZZ_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

// Must not crash, whatever the bytes are. Returns 0 (libFuzzer's interface).
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace verbena::fuzz {

// Good inputs to start from; defined by each target.
std::vector<std::string> Seeds();

template <typename T>
std::string BytesOf(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Takes values off the front of an input; zeros once it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), left_(size) {}
  bool empty() const { return left_ == 0; }
  template <typename T>
  T Take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value = {};
    const size_t bytes = left_ < sizeof(T) ? left_ : sizeof(T);
    if (bytes > 0) std::memcpy(&value, data_, bytes);
    data_ += bytes;
    left_ -= bytes;
    return value;
  }

 private:
  const uint8_t* data_;
  size_t left_;
};

}  // namespace verbena::fuzz

// A property that must hold for every input; a violation is a finding, as a crash is.
#define FUZZ_CHECK(condition)                                                             \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)

#endif  // VERBENA_TESTS_FUZZ_FUZZ_H_
