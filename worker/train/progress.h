// Reports the progress of training: one live line on a terminal, a plain line every two seconds
// elsewhere.
//
// Readers are optional: a line for which there is no room is dropped.
//
// **Thread safety**: one thread.
#ifndef VERBENA_WORKER_TRAIN_PROGRESS_H_
#define VERBENA_WORKER_TRAIN_PROGRESS_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "worker/train/trainer.h"

namespace verbena::worker {

// Without a line end. `rate_from` is an earlier state: speeds are those since then. ETA is left out
// while unknown. A run that was resumed counts its own steps alone for it.
std::string ProgressLine(const Totals& now, const Totals& rate_from, uint64_t steps);

class Progress {
 public:
  // `steps`: the planned steps; set_steps() changes them. Lines go to `out`.
  Progress(std::FILE* out, bool terminal, uint64_t steps);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set_steps(uint64_t steps) { steps_ = steps; }
  // The sum over the workers. Prints when it is time to; cheap otherwise.
  void Update(const Totals& totals);
  // A line of its own.
  void Note(std::string_view line);
  // The last state stays on the terminal.
  void Finish(const Totals& totals);

 private:
  void Print(const Totals& totals);
  void Write(std::string_view text);

  std::FILE* out_;
  bool terminal_;
  uint64_t steps_;
  Totals printed_;  // in the last line
  bool live_ = false;
};

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_PROGRESS_H_
