// The census data through two servers: quality recomputed from the predictions. Needs
// VERBENA_TEST_DATA (tests/support/with_test_data.sh).
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/cluster.h"

namespace verbena::test {
namespace {

std::string DataFile(const std::string& name) {
  return std::string(std::getenv("VERBENA_TEST_DATA")) + "/" + name;
}

std::vector<int> Labels(const std::string& path) {
  std::ifstream file(path);
  std::vector<int> labels;
  std::string line;
  while (std::getline(file, line)) {
    if (!line.empty()) labels.push_back(std::strtod(line.c_str(), nullptr) > 0 ? 1 : 0);
  }
  return labels;
}

// Rank statistic with ties shared (Hanley and McNeil, Radiology 1982).
double Auc(const std::vector<int>& labels, const std::vector<double>& scores) {
  std::vector<size_t> order(scores.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] < scores[b]; });
  double rank_sum = 0, positives = 0;
  for (size_t i = 0; i < order.size();) {
    size_t j = i;
    while (j < order.size() && scores[order[j]] == scores[order[i]]) ++j;
    for (size_t k = i; k < j; ++k) {
      if (labels[order[k]] == 1) rank_sum += (i + j + 1) / 2.0, ++positives;
    }
    i = j;
  }
  const double negatives = labels.size() - positives;
  return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives);
}

void TrainAndCheck(int workers, const std::string& consistency,
                   const std::vector<std::string>& more = {}) {
  ProcessCluster cluster;
  TemporaryDirectory directory;
  const std::string predictions = directory.File("predictions");
  std::vector<std::string> command = {TrainPath(),
                                      "--cluster",
                                      cluster.address(),
                                      "--format",
                                      "libsvm",
                                      "--data",
                                      DataFile("a9a"),
                                      "--test",
                                      DataFile("a9a.t"),
                                      "--workers",
                                      std::to_string(workers),
                                      "--consistency",
                                      consistency,
                                      "--predictions",
                                      predictions,
                                      "--json"};
  command.insert(command.end(), more.begin(), more.end());
  const Finished train = RunProgram(command);
  INFO(train.err);
  REQUIRE(train.status == 0);
  const std::vector<int> labels = Labels(DataFile("a9a.t"));
  std::vector<double> scores;
  std::ifstream file(predictions);
  for (double p; file >> p;) scores.push_back(p);
  REQUIRE(scores.size() == labels.size());
  int right = 0;
  for (size_t i = 0; i < labels.size(); ++i) right += (scores[i] > 0.5) == (labels[i] == 1);
  const double accuracy = static_cast<double>(right) / labels.size();
  const double auc = Auc(labels, scores);
  INFO(workers << " workers, " << consistency << ": AUC " << auc << ", accuracy " << accuracy);
  CHECK(auc >= 0.900);
  CHECK(accuracy >= 0.848);
  CHECK(std::strtod(JsonField(train.out, "auc").c_str(), nullptr) == Approx(auc).margin(1e-4));
  CHECK(std::strtod(JsonField(train.out, "accuracy").c_str(), nullptr) ==
        Approx(accuracy).margin(1e-4));
}

TEST_CASE("a9a, sync") {
  for (int workers : {1, 2, 4}) TrainAndCheck(workers, "sync");
}

TEST_CASE("a9a, async") {
  for (int workers : {1, 2, 4}) TrainAndCheck(workers, "async");
}

TEST_CASE("a9a, ssp") { TrainAndCheck(4, "ssp"); }

TEST_CASE("a9a through an embedding table: a row for each feature") {
  // A rate that falls to 0: with a constant one the last pushes decide the third digit of the
  // accuracy, and whose they are depends on how fast the workers happen to be.
  std::vector<std::string> model = {"--model", "embedding-logistic", "--schedule", "cosine"};
  TrainAndCheck(2, "sync", model);
  TrainAndCheck(2, "async", model);
  model.insert(model.end(), {"--staleness", "4"});
  TrainAndCheck(2, "ssp", model);
}

}  // namespace
}  // namespace verbena::test
