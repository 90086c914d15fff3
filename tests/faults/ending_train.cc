// verbena-train with a worker that is killed between two steps:
//
//     END_AFTER_STEPS=N ending_train --max-workers ... OPTIONS
//
// It gets SIGKILL from itself after so many steps of its own, so that it has contributed to all of
// them wholly and to no other.
#include <csignal>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "proto/base/process_start.h"
#include "worker/train/options.h"
#include "worker/train/worker_process.h"

int main(int argc, char** argv) {
  using namespace verbena::worker;
  verbena::PrepareProcess();
  const char* const number = std::getenv("END_AFTER_STEPS");
  uint64_t last = 0;
  if (number == nullptr || !absl::SimpleAtoi(number, &last)) return kExitUsage;
  const Parsed parsed = ParseOptions(argc, argv);
  if (!parsed.options) return parsed.exit_status;
  uint64_t made = 0;
  return RunSeparateWorker(*parsed.options, [&](uint64_t) {
    if (++made == last) std::raise(SIGKILL);
  });
}
