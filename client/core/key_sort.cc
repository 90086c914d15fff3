#include "client/core/key_sort.h"

namespace verbena::client {

void KeySort::Run() {
  KeyScratch scratch;
  if (bags_.has_value()) {
    bag_call_ = std::make_unique<BagCall>();
    bag_call_->Build(*bags_, of_.table, of_.partitions, limits_, &scratch);
    return;
  }
  plan_ = std::make_unique<KeyPlan>();
  plan_->Build(keys_, of_.table, of_.partitions, &scratch);
}

}  // namespace verbena::client
