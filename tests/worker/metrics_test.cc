#include "worker/train/metrics.h"

#include <catch2/catch.hpp>
#include <limits>
#include <vector>

namespace verbena::worker {
namespace {

TEST_CASE("AUC counts the pairs in order, ties half") {
  const std::vector<float> labels = {0, 0, 1, 1};
  CHECK(AreaUnderCurve(std::vector<float>{0.1f, 0.2f, 0.3f, 0.4f}, labels) == 1.0);
  CHECK(AreaUnderCurve(std::vector<float>{0.4f, 0.3f, 0.2f, 0.1f}, labels) == 0.0);
  CHECK(AreaUnderCurve(std::vector<float>{0.5f, 0.5f, 0.5f, 0.5f}, labels) == 0.5);
  // Pairs: (0.1, 0.35), (0.1, 0.8), (0.4, 0.8) right, (0.4, 0.35) wrong.
  CHECK(AreaUnderCurve(std::vector<float>{0.1f, 0.4f, 0.35f, 0.8f}, labels) == 0.75);
  // (0.1, 0.4) right, (0.4, 0.4) half, (0.1, 0.8) and (0.4, 0.8) right: 3.5 of 4.
  CHECK(AreaUnderCurve(std::vector<float>{0.1f, 0.4f, 0.4f, 0.8f}, labels) == 0.875);
}

TEST_CASE("AUC needs both classes") {
  CHECK_FALSE(AreaUnderCurve(std::vector<float>{0.1f, 0.2f}, std::vector<float>{1, 1}));
  CHECK_FALSE(AreaUnderCurve(std::vector<float>{0.1f}, std::vector<float>{0}));
  CHECK_FALSE(AreaUnderCurve({}, {}));
}

TEST_CASE("regression: of scores that are no numbers there is no AUC") {
  const std::vector<float> labels = {0, 0, 1, 1};
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const std::vector<float> scores = {0.1f, bad, 0.3f, bad};
    CHECK_FALSE(AreaUnderCurve(scores, labels));
    CHECK(CountNotFinite(scores) == 2);
  }
}

TEST_CASE("accuracy is the share on the right side of one half") {
  CHECK(Accuracy(std::vector<float>{0.9f, 0.1f, 0.6f, 0.4f}, std::vector<float>{1, 0, 0, 1}) ==
        0.5);
  CHECK(Accuracy(std::vector<float>{0.9f, 0.1f, 0.4f}, std::vector<float>{1, 0, 0}) == 1.0);
  CHECK_FALSE(Accuracy({}, {}));
}

}  // namespace
}  // namespace verbena::worker
