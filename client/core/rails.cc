#include "client/core/rails.h"

#include <algorithm>

namespace verbena::client {
namespace {

// Plus one, so that partitions without a known load are spread by number.
uint64_t Weight(uint64_t load) { return load + 1; }

}  // namespace

RailPins::Rail* RailPins::Emptiest() {
  Rail* emptiest = nullptr;
  for (Rail& rail : rails_) {
    if (rail.up && (emptiest == nullptr || rail.load < emptiest->load)) emptiest = &rail;
  }
  return emptiest;
}

uint64_t RailPins::load(uint32_t rail) const {
  uint64_t sum = 0;
  for (const Pin& pin : pins_) {
    if (pin.used && pin.rail == rail) sum += Weight(pin.load);
  }
  return sum;
}

uint32_t RailPins::Of(uint32_t partition) {
  if (partition >= pins_.size()) pins_.resize(partition + 1);
  Pin& pin = pins_[partition];
  if (pin.used) return pin.rail;
  for (Rail& rail : rails_) rail.load = load(NumberOf(&rail));
  const Rail* rail = Emptiest();
  pin = {true, rail == nullptr ? 0 : NumberOf(rail), 0};
  return pin.rail;
}

void RailPins::Forget(uint32_t partition) {
  if (partition < pins_.size()) pins_[partition] = {};
}

void RailPins::Up(uint32_t rail) {
  if (rail >= rails_.size()) rails_.resize(rail + 1);
  rails_[rail].up = true;
  Rearrange();
}

void RailPins::Down(uint32_t rail) {
  if (!up(rail)) return;
  rails_[rail].up = false;
  Rearrange();
}

void RailPins::Balance() {
  uint64_t least = UINT64_MAX, most = 0;
  for (const Rail& rail : rails_) {
    if (!rail.up) continue;
    const uint64_t sum = load(NumberOf(&rail));
    least = std::min(least, sum);
    most = std::max(most, sum);
  }
  if (most > 0 && most - least > least / 4) Rearrange();
}

void RailPins::Rearrange() {
  if (Emptiest() == nullptr) return;  // no rail is up
  for (Rail& rail : rails_) rail.load = 0;
  std::vector<Pin*> order;
  for (Pin& pin : pins_) {
    if (!pin.used) continue;
    order.push_back(&pin);
    if (pin.rail < rails_.size()) rails_[pin.rail].load += Weight(pin.load);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const Pin* a, const Pin* b) { return a->load > b->load; });
  for (Pin* pin : order) {
    if (up(pin->rail)) continue;
    Rail* to = Emptiest();
    if (pin->rail < rails_.size()) rails_[pin->rail].load -= Weight(pin->load);
    to->load += Weight(pin->load);
    pin->rail = NumberOf(to);
  }
  // From the fullest to the emptiest, while that makes the two more even. Each round does, so the
  // loop ends.
  while (true) {
    Rail* to = Emptiest();
    Rail* from = &*std::max_element(rails_.begin(), rails_.end(),
                                    [](const Rail& a, const Rail& b) { return a.load < b.load; });
    const auto it = std::find_if(order.begin(), order.end(), [&](const Pin* pin) {
      return &rails_[pin->rail] == from && to->load + Weight(pin->load) < from->load;
    });
    if (it == order.end()) break;
    from->load -= Weight((*it)->load);
    to->load += Weight((*it)->load);
    (*it)->rail = NumberOf(to);
  }
  for (Pin& pin : pins_) pin.load -= pin.load / 2;
}

}  // namespace verbena::client
