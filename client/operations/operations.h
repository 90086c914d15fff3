// The operations of a client: one handler each.
//
// **Thread safety**: one owner at a time.
#ifndef VERBENA_CLIENT_OPERATIONS_OPERATIONS_H_
#define VERBENA_CLIENT_OPERATIONS_OPERATIONS_H_

#include <cstdint>

#include "client/operations/await.h"
#include "client/operations/end_step.h"
#include "client/operations/lookup.h"
#include "client/operations/norms.h"
#include "client/operations/prefetch.h"
#include "client/operations/pull.h"
#include "client/operations/push.h"
#include "client/operations/push_rows.h"
#include "client/operations/scan.h"
#include "client/operations/set_optimizer.h"
#include "client/operations/totals.h"

namespace verbena::client {

// The calls of a worker that change a table, by the meaning of their data.
enum class Write : uint8_t {
  kPush,    // gradients, for the optimizer
  kAssign,  // new parameters
  kState,   // an array of the optimizer's state; of dense tables
};

struct Requests {
  explicit Requests(RequestTracker* tracker);

  PushRequests push;
  PushRequests assign;
  PullRequests pull;
  EndStepRequests end_step;
  AwaitRequests await;
  PushRowsRequests push_rows;
  PushRowsRequests assign_rows;
  LookupRequests lookup;       // of rows
  LookupRequests lookup_bags;  // of sums of rows
  ScanRequests scan;
  NormsRequests norms;
  TotalsRequests totals;
  PrefetchRequests prefetch;
  SetOptimizerRequests set_optimizer;
  PullRequests pull_state;
  PushRequests assign_state;

  PushRequests& chunks_of(Write write) {
    if (write == Write::kState) return assign_state;
    return write == Write::kAssign ? assign : push;
  }
  PushRowsRequests& rows_of(Write write) {
    return write == Write::kAssign ? assign_rows : push_rows;
  }
};

}  // namespace verbena::client

#endif  // VERBENA_CLIENT_OPERATIONS_OPERATIONS_H_
