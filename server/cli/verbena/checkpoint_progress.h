// Shows the progress of long work on files, and ends it at a signal.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_PROGRESS_H_
#define VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_PROGRESS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "server/checkpoint/files/checkpoint_reader.h"

namespace verbena::cli {

class Progress {
 public:
  // `all`: bytes of the whole work. `shown`: also if standard error is no terminal. `signal_fd`:
  // -1: none.
  Progress(bool shown, const char* verb, uint64_t all, int signal_fd);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Called with the bytes done since the last call. CANCELLED: a signal came.
  checkpoint::CheckpointReader::Progress Callback() {
    return [this](uint64_t bytes) { return Add(bytes); };
  }
  double seconds() const;
  uint64_t done() const { return done_; }

 private:
  absl::Status Add(uint64_t bytes);

  const bool terminal_, shown_;
  const char* const verb_;
  const uint64_t all_;
  const int signal_fd_;
  const double begin_;
  double next_;
  uint64_t done_ = 0;
  bool any_ = false, ended_ = false;
};

}  // namespace verbena::cli

#endif  // VERBENA_SERVER_CLI_VERBENA_CHECKPOINT_PROGRESS_H_
