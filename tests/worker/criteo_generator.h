// Click logs in Criteo's format whose labels are drawn from probabilities that are known, so that
// the best AUC any model can reach is known too.
//
// An example's log-odds are a bias, an effect of each category, a multiple of each log(1 +
// integer), and for some pairs of fields an effect of the pair, which no linear model can learn.
//
// **Thread safety**: immutable once made; pure functions.
#ifndef VERBENA_TESTS_WORKER_CRITEO_GENERATOR_H_
#define VERBENA_TESTS_WORKER_CRITEO_GENERATOR_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "worker/data/criteo_reader.h"

namespace verbena::worker {

struct CriteoRows {
  std::string text;  // lines
  std::vector<float> probabilities, labels;
};

class CriteoGenerator {
 public:
  explicit CriteoGenerator(uint64_t seed);

  // Rows first, first + 1, ..., each a function of the seed and its number alone: disjoint ranges
  // are independent draws from the same distribution.
  CriteoRows Make(uint64_t first, uint64_t rows) const;

 private:
  struct Field {
    uint32_t categories = 0;
    std::vector<double> effects;                // of each
    std::vector<std::array<double, 2>> paired;  // an effect of (a, b) is their scalar product
  };

  void MakeRow(uint64_t number, CriteoRows* out) const;

  uint64_t seed_;
  std::array<Field, kCriteoCategories> fields_;
  std::array<double, kCriteoIntegers> slopes_;
};

// The expected AUC, over all draws of the labels, of a ranking by the true probabilities: no
// ranking has a higher one (Clemencon, Lugosi and Vayatis, 2008).
double BayesAuc(const std::vector<float>& probabilities);

}  // namespace verbena::worker

#endif  // VERBENA_TESTS_WORKER_CRITEO_GENERATOR_H_
