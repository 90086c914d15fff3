// The command line of random_faults.
//
// **Thread safety**: pure functions.
#ifndef VERBENA_TESTS_FAULTS_RANDOM_FAULTS_OPTIONS_H_
#define VERBENA_TESTS_FAULTS_RANDOM_FAULTS_OPTIONS_H_

#include <string>
#include <vector>

#include "tests/faults/random_faults_plan.h"

namespace verbena::test {

struct RandomFaultsCommand {
  FaultOptions options;
  // Options of a worker process, which the driver starts with the same options.
  int process = -1;
  std::string cluster, ledger;
  // Set when there is nothing to run.
  bool help = false;
  std::string error;
};

RandomFaultsCommand ParseRandomFaults(const std::vector<std::string>& arguments);
std::string RandomFaultsHelp();
// Options that are not the defaults, as they are typed; the seed always.
std::vector<std::string> ArgumentsOf(const FaultOptions& options);

}  // namespace verbena::test

#endif  // VERBENA_TESTS_FAULTS_RANDOM_FAULTS_OPTIONS_H_
