// Checks that what happened to a partition is a path of the model of the control protocol: its
// transitions of configurations and its conditions to answer are those of rules.h, which
// cluster.pml is made of.
//
// **Thread safety**: one thread.
#ifndef VERBENA_TESTS_MODEL_TRACE_CHECKER_H_
#define VERBENA_TESTS_MODEL_TRACE_CHECKER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace verbena::test {

// One with the fields that rules.h names. Servers are incarnations; 0: none.
struct TraceConfiguration {
  uint64_t epoch = 0, number = 0;
  uint64_t primary = 0;
  uint64_t copy = 0;
  bool follower = false;
  uint64_t since = 0;
  bool moves = false;  // the primary is to hand the partition over
  bool operator==(const TraceConfiguration&) const = default;
};

struct TraceEvent {
  enum class Kind : uint8_t {
    kSaved,   // `configuration`, by the coordinator's term `term`
    kPlaced,  // the same, of a partition that has nothing, or whose content is declared lost
    kChange,  // `server` has applied a push, or a step, in `epoch`
    kReads,   // `server` may answer reads in `epoch`
    kEnds,    // ... no more
  };
  Kind kind = Kind::kSaved;
  TraceConfiguration configuration;
  uint64_t term = 0;
  uint64_t server = 0, epoch = 0;
};

// Of one partition, from its first configuration on.
class TraceChecker {
 public:
  // Empty: the model can take that step. Else the reason; later events have no meaning then.
  std::string Add(const TraceEvent& event);
  uint64_t steps() const { return steps_; }  // of the model, in configurations

 private:
  std::string Save(const TraceEvent& event);

  TraceConfiguration now_;
  uint64_t term_ = 0;
  std::map<uint64_t, uint64_t> primaries_;  // by epoch
  uint64_t reads_ = 0;                      // the server that may answer reads; 0: none
  uint64_t steps_ = 0;
};

// The first event that is no step of the model, with its number; empty: there is none.
std::string CheckTrace(const std::vector<TraceEvent>& trace);

}  // namespace verbena::test

#endif  // VERBENA_TESTS_MODEL_TRACE_CHECKER_H_
