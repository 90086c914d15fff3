#include "client/operations/operations.h"

#include "proto/wire/operations.h"

namespace verbena::client {
namespace {

using Traits = RequestHandler::Traits;
using Queue = RequestHandler::Queue;
using Counted = RequestHandler::Counted;
using Buffers = RequestHandler::Buffers;
using Leaves = RequestHandler::Leaves;

constexpr Traits kPush = {.type = RecordType::kPush,
                          .queue = Queue::kOrdered,
                          .counted = Counted::kOrdered,
                          .buffers = Buffers::kPacked,
                          .leaves = Leaves::kSlots,
                          .contributes = true,
                          .chunk = true};
constexpr Traits kAssign = {.type = RecordType::kAssign,
                            .queue = Queue::kOrdered,
                            .counted = Counted::kOrdered,
                            .buffers = Buffers::kPacked,
                            .leaves = Leaves::kSlots,
                            .contributes = true,
                            .assigns = true,
                            .chunk = true};
constexpr Traits kPull = {.type = RecordType::kPull,
                          .queue = Queue::kPulls,
                          .counted = Counted::kPulls,
                          .leaves = Leaves::kOperations,
                          .chunk = true,
                          .reads = true};
constexpr Traits kEndStep = {.type = RecordType::kEndStep,
                             .queue = Queue::kOrdered,
                             .counted = Counted::kOrdered,
                             .ends_step = true};
constexpr Traits kAwait = {.type = RecordType::kAwait,
                           .queue = Queue::kPulls,
                           .counted = Counted::kAwaits,
                           .awaits = true};
constexpr Traits kPushRows = {.type = RecordType::kPushRows,
                              .queue = Queue::kOrdered,
                              .counted = Counted::kOrdered,
                              .buffers = Buffers::kPacked,
                              .contributes = true};
constexpr Traits kAssignRows = {.type = RecordType::kAssignRows,
                                .queue = Queue::kOrdered,
                                .counted = Counted::kOrdered,
                                .buffers = Buffers::kPacked,
                                .contributes = true,
                                .assigns = true};
constexpr Traits kLookup = {.type = RecordType::kLookup,
                            .queue = Queue::kPulls,
                            .counted = Counted::kPulls,
                            .leaves = Leaves::kOperations,
                            .reads = true};
constexpr Traits kLookupBags = {.type = RecordType::kLookupBags,
                                .queue = Queue::kPulls,
                                .counted = Counted::kPulls,
                                .leaves = Leaves::kOperations,
                                .reads = true};
constexpr Traits kScan = {.type = RecordType::kScan,
                          .queue = Queue::kPulls,
                          .counted = Counted::kPulls,
                          .leaves = Leaves::kOperations};
constexpr Traits kNorms = {.type = RecordType::kNorms,
                           .queue = Queue::kNorms,
                           .counted = Counted::kAwaits,
                           .buffers = Buffers::kNorms};
constexpr Traits kTotals = {
    .type = RecordType::kTotals, .queue = Queue::kNorms, .counted = Counted::kNothing};
constexpr Traits kPrefetch = {.type = RecordType::kPrefetch,
                              .queue = Queue::kPulls,
                              .counted = Counted::kPulls,
                              .buffers = Buffers::kPacked,
                              .leaves = Leaves::kOperations};
constexpr Traits kSetOptimizer = {.type = RecordType::kSetOptimizer,
                                  .queue = Queue::kOrdered,
                                  .counted = Counted::kOrdered,
                                  .in_any_step = true};
// The same operation on an array of the optimizer's state.
constexpr Traits OfState(Traits traits, RecordType type) {
  traits.type = type;
  traits.state = true;
  return traits;
}
constexpr Traits kPullState = OfState(kPull, RecordType::kPullState);
constexpr Traits kAssignState = OfState(kAssign, RecordType::kAssignState);

}  // namespace

Requests::Requests(RequestTracker* tracker)
    : push(kPush, tracker),
      assign(kAssign, tracker),
      pull(kPull, tracker),
      end_step(kEndStep, tracker),
      await(kAwait, tracker),
      push_rows(kPushRows, tracker),
      assign_rows(kAssignRows, tracker),
      lookup(kLookup, tracker),
      lookup_bags(kLookupBags, tracker),
      scan(kScan, tracker),
      norms(kNorms, tracker),
      totals(kTotals, tracker),
      prefetch(kPrefetch, tracker),
      set_optimizer(kSetOptimizer, tracker),
      pull_state(kPullState, tracker),
      assign_state(kAssignState, tracker) {}

std::string_view RequestHandler::name() const { return wire::OperationOf(traits_.type).name; }

}  // namespace verbena::client
