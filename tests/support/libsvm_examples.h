// Examples in libsvm's format, whose label follows from their features.
//
// **Thread safety**: a function without state.
#ifndef VERBENA_TESTS_SUPPORT_LIBSVM_EXAMPLES_H_
#define VERBENA_TESTS_SUPPORT_LIBSVM_EXAMPLES_H_

#include <random>
#include <string>

#include "absl/strings/str_cat.h"

namespace verbena::test {

inline std::string LibsvmExamples(int rows) {
  std::mt19937_64 random(3);
  std::string text;
  for (int row = 0; row < rows; ++row) {
    int score = static_cast<int>(random() % 5) - 2;
    std::string features;
    for (int index = 1; index <= 60; ++index) {
      if (random() % 6 != 0) continue;
      score += (index % 7) - 3;
      absl::StrAppend(&features, " ", index, ":1");
    }
    absl::StrAppend(&text, score > 0 ? 1 : 0, features, "\n");
  }
  return text;
}

}  // namespace verbena::test

#endif  // VERBENA_TESTS_SUPPORT_LIBSVM_EXAMPLES_H_
