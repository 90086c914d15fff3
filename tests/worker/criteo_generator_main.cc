// Writes click logs in Criteo's format and prints the best AUC that a model can have on them.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <string>

#include "proto/base/json.h"
#include "proto/base/usage_error.h"
#include "tests/worker/criteo_generator.h"
#include "worker/train/metrics.h"

int main(int argc, char** argv) {
  using namespace verbena::worker;
  uint64_t rows = 0;
  uint64_t first = 0;
  uint64_t seed = 1;
  std::string path;
  CLI::App app("Writes click logs in Criteo's format with known click probabilities.");
  app.add_option("rows", rows, "Lines to write")->required();
  app.add_option("file", path, "Where to")->required();
  app.add_option("--first", first, "Number of the first; other numbers, other examples");
  app.add_option("--seed", seed, "Of the probabilities and the examples");
  if (const auto ended = verbena::ParseOrExit(&app, argc, argv, std::cerr)) return *ended;
  const CriteoRows made = CriteoGenerator(seed).Make(first, rows);
  std::FILE* file = std::fopen(path.c_str(), "we");
  const bool wrote = file != nullptr &&
                     std::fwrite(made.text.data(), 1, made.text.size(), file) == made.text.size();
  if (file == nullptr || std::fclose(file) != 0 || !wrote) {
    std::perror(path.c_str());
    return 1;
  }
  verbena::JsonWriter json;
  json.Add("rows", rows);
  json.Add("bayes_auc", BayesAuc(made.probabilities));
  // On the drawn labels: the bound to compare a model's AUC on this file with.
  json.Add("auc_of_probabilities", AreaUnderCurve(made.probabilities, made.labels));
  std::printf("%s\n", json.ToString().c_str());
}
