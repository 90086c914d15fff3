// Messages between a worker process and its launcher, over a SOCK_SEQPACKET pair.
//
//     worker -> launcher: kProgress, kValidated and kNote*, then kTrained (waits for an order) or
//                         kFailed (and exits); after kEvaluate: kQuality or kFailed
//     launcher -> worker: kEvaluate, kExit; closing means kExit
//
// **Thread safety**: pure functions.
//
// Invariants:
//  1. Both ends are the same executable, so messages are its own structs; a packet of another size
//     is an error, never a partial read.
#ifndef VERBENA_WORKER_TRAIN_CHANNEL_H_
#define VERBENA_WORKER_TRAIN_CHANNEL_H_

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/models/model.h"
#include "worker/train/trainer.h"
#include "worker/train/validation.h"

namespace verbena::worker {

struct ChannelMessage {
  enum class Kind : uint32_t {
    kProgress,
    kNote,
    kValidated,
    kTrained,
    kQuality,
    kFailed,
    kEvaluate,
    kExit
  };

  Kind kind = Kind::kProgress;
  Totals totals;
  uint64_t planned_steps = 0;
  uint64_t parameters_hash = 0;  // kQuality
  Quality quality;               // kQuality
  Validation validation;         // kValidated
  bool stopped_early = false;    // kTrained
  char transport[64] = {};       // kTrained
  char text[2048] = {};          // kFailed; kNote: a line for the user

  void SetText(std::string_view value);
  void SetTransport(std::string_view value);
};
static_assert(std::is_trivially_copyable_v<ChannelMessage>);

// UNAVAILABLE when the other end is gone.
absl::Status SendMessage(int fd, const ChannelMessage& message);
// Waits for one.
absl::StatusOr<ChannelMessage> ReceiveMessage(int fd);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_TRAIN_CHANNEL_H_
