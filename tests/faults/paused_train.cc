// verbena-train whose workers wait after a step until a file exists:
//
//     PAUSE_AFTER_STEP=N PAUSE_UNTIL=FILE paused_train OPTIONS...
//
// Their clients live on, which a stopped process's do not.
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/base/process_start.h"
#include "worker/train/launcher.h"
#include "worker/train/options.h"
#include "worker/train/worker_process.h"

int main(int argc, char** argv) {
  using namespace verbena::worker;
  verbena::PrepareProcess();
  const char* const until = std::getenv("PAUSE_UNTIL");
  const char* const number = std::getenv("PAUSE_AFTER_STEP");
  uint64_t last = 0;
  if (until == nullptr || number == nullptr || !absl::SimpleAtoi(number, &last)) return kExitUsage;
  const Parsed parsed = ParseOptions(argc, argv);
  if (!parsed.options) return parsed.exit_status;
  if (parsed.options->channel < 0) return Launch(*parsed.options, argc, argv);
  const std::atomic<bool>* const stop = InstallStopHandler();
  return RunLaunchedWorker(*parsed.options, [&](uint64_t steps) {
    while (steps == last && access(until, F_OK) != 0 && !stop->load()) {
      absl::SleepFor(absl::Milliseconds(50));
    }
  });
}
