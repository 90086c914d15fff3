// Rows that are not in memory: resumes requests that wait for them, and handles rows that are lost.
//
// **Thread safety**: one owner thread.
#ifndef VERBENA_SHARD_COLD_EVENTS_H_
#define VERBENA_SHARD_COLD_EVENTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "shard/table/cold_io.h"

namespace verbena::shard {

struct EngineCore;

class ColdEvents {
 public:
  explicit ColdEvents(EngineCore* core) : core_(*core) {}

  // Counters of tables with a cold tier.
  ColdCounters counters() const;
  // Why rows could not be read, in words, since the last call: their partitions answer kDataLoss.
  std::vector<std::string> TakeErrors();
  // Why nothing can be written to the cold store now; requests that wait for rows may wait for
  // long.
  absl::Status health() const;

  // ---- for the engine's parts ----
  // Handles results of the cold store, and requests that waited for them.
  void Run();

 private:
  // No other content may replace the lost row, so its partition is lost, as after a server failure.
  void LoseRow(const ColdIo::Failure& failure);

  EngineCore& core_;
  std::vector<std::string> errors_;
};

}  // namespace verbena::shard

#endif  // VERBENA_SHARD_COLD_EVENTS_H_
