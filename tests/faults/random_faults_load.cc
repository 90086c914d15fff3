#include "tests/faults/random_faults_load.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace verbena::test {
namespace {

// Sums of ones are exact in a float up to 2^24. Beyond half of that a table is pushed slowly.
constexpr uint64_t kFull = uint64_t{1} << 23;
constexpr size_t kMostRows = 512;  // of a call
// Regions that are kept to be given back together: more than a server takes in at once.
constexpr size_t kMostHeld = 480, kMostHeldBytes = 64 << 10;

std::vector<uint64_t> UnitsFrom(uint64_t first, uint64_t count) {
  std::vector<uint64_t> units(count);
  std::iota(units.begin(), units.end(), first);
  return units;
}

std::vector<uint64_t> KeysOf(const std::vector<uint64_t>& units) {
  std::vector<uint64_t> keys;
  keys.reserve(units.size());
  for (const uint64_t unit : units) keys.push_back(KeyOf(unit));
  return keys;
}

std::vector<uint64_t> SomeRows(Draw* draw, const TablePlan& table) {
  std::vector<uint64_t> units(draw->Between(1, kMostRows));
  for (uint64_t& unit : units) unit = draw->Between(0, table.units - 1);
  return units;
}

Range RangeOf(const TablePlan& table, uint64_t first, uint64_t count) {
  return {first * table.width, count * table.width, 0};
}

}  // namespace

Pusher::Pusher(Client* client, CallCheck* calls, OpenTable table, Role role, uint64_t seed)
    : client_(client), calls_(calls), table_(std::move(table)), role_(role), draw_(seed) {}

bool Pusher::Over() {
  Ledger& ledger = calls_->ledger();
  if (ledger.aborted()) return true;
  if (role_ == Role::kVisitor) return false;
  if (!ends_steps()) return !ledger.running();
  TableLedger& table = *table_.ledger;
  if (role_ == Role::kLeader && !ledger.running() && table.stop_step.load() == 0) {
    // No worker is beyond that: without this worker's step none ends a later sync step, or an ssp
    // step more than staleness + 1 later, because each round of an ssp table ends with a pull.
    const bool ssp = table_.plan.consistency == v1::CONSISTENCY_SSP;
    table.stop_step.store(step_ + (ssp ? table_.plan.staleness + 3 : 1));
  }
  const uint64_t stop = table.stop_step.load();
  return stop != 0 && step_ >= stop;
}

// Gradients of ones; now and then in new memory.
bool Pusher::Prepare() {
  if (ones_.size() > 0 && !draw_.OneIn(64)) return true;
  const TablePlan& plan = table_.plan;
  const uint64_t units = plan.embedding() ? kMostRows : plan.units;
  const CallCheck::Call call = calls_->Begin("AllocateRegion for", plan.name);
  auto region = client_->AllocateRegion(units * plan.width * sizeof(float));
  if (!calls_->End(call, region.status())) return false;
  ones_ = *std::move(region);
  std::fill_n(ones_.floats(), units * plan.width, 1.0f);
  return true;
}

void Pusher::PushChunks(std::vector<Flight>* flights) {
  const TablePlan& plan = table_.plan;
  uint64_t first = 0, count = plan.units;
  if (draw_.OneIn(2)) {
    first = draw_.Between(0, plan.units - 1);
    count = draw_.Between(1, plan.units - first);
  }
  while (count > 0) {
    const uint64_t now = draw_.OneIn(3) ? draw_.Between(1, count) : count;
    Flight flight;
    flight.units = UnitsFrom(first, now);
    for (const uint64_t unit : flight.units) table_.ledger->attempted[unit].fetch_add(1);
    PushOptions options;
    options.timeout = calls_->timeout();
    if (draw_.OneIn(4)) {
      auto values = client_->AllocateRegion(now * plan.width * sizeof(float));
      if (values.ok()) flight.values = *std::move(values);
    }
    if (flight.values.size() > 0) {
      flight.reading = std::make_unique<Reading>(plan, table_.ledger, flight.units);
      step_ended_ |= now == plan.units && plan.consistency == v1::CONSISTENCY_SYNC;
      flight.call = calls_->Begin("PushPull", plan.name);
      flight.ticket = client_->PushPull(table_.handle, ones_, flight.values,
                                        RangeOf(plan, first, now), options);
    } else {
      flight.call = calls_->Begin("Push", plan.name);
      flight.ticket = client_->Push(table_.handle, ones_, RangeOf(plan, first, now), options);
    }
    flights->push_back(std::move(flight));
    first += now;
    count -= now;
  }
}

void Pusher::PushSomeRows(std::vector<Flight>* flights) {
  for (uint64_t left = draw_.Between(1, 3); left > 0; --left) {
    Flight flight;
    flight.units = SomeRows(&draw_, table_.plan);
    for (const uint64_t unit : flight.units) table_.ledger->attempted[unit].fetch_add(1);
    RowOptions options;
    options.timeout = calls_->timeout();
    flight.call = calls_->Begin("PushRows", table_.plan.name);
    flight.ticket = client_->PushRows(table_.handle, KeysOf(flight.units), ones_, options);
    flights->push_back(std::move(flight));
  }
}

bool Pusher::Settle(std::vector<Flight>* flights) {
  bool good = true;
  for (Flight& flight : *flights) {
    const bool ok = calls_->End(flight.call, flight.ticket.Wait());
    good &= ok;
    if (!ok) continue;
    for (const uint64_t unit : flight.units) table_.ledger->acked[unit].fetch_add(1);
    if (flight.reading == nullptr) continue;
    const std::string problem = flight.reading->Check(flight.values.floats());
    if (problem.empty()) continue;
    calls_->Fail(absl::StrCat("PushPull: ", problem));
    good = false;
  }
  return good;
}

// One unit, with the default version: in an ssp table it waits for workers that are behind.
bool Pusher::ReadOne() {
  const TablePlan& plan = table_.plan;
  const uint64_t unit = draw_.Between(0, plan.units - 1);
  auto values = client_->AllocateRegion(plan.width * sizeof(float));
  if (!values.ok()) {
    calls_->Fail(absl::StrCat("AllocateRegion: ", values.status().ToString()));
    return false;
  }
  const Reading reading(plan, table_.ledger, {unit});
  const CallCheck::Call call = calls_->Begin("pull after a step of", plan.name);
  PullOptions pull;
  LookupOptions lookup;
  pull.timeout = lookup.timeout = calls_->timeout();
  const uint64_t key = KeyOf(unit);
  Ticket ticket = plan.embedding()
                      ? client_->Lookup(table_.handle, {&key, 1}, *values, lookup)
                      : client_->Pull(table_.handle, *values, RangeOf(plan, unit, 1), pull);
  if (!calls_->End(call, ticket.Wait())) return false;
  const std::string problem = reading.Check(values->floats());
  if (!problem.empty()) calls_->Fail(problem);
  return problem.empty();
}

bool Pusher::Round() {
  if (Over() || !Prepare()) return false;
  if (++rounds_ % 256 == 0 && table_.ledger->attempted[0].load() > kFull) {
    absl::SleepFor(absl::Seconds(2));  // so that the sums stay exact
  }
  std::vector<Flight> flights;
  step_ended_ = false;
  if (table_.plan.embedding()) {
    PushSomeRows(&flights);
  } else {
    PushChunks(&flights);
  }
  if (ends_steps() && !step_ended_) {
    Flight end;
    PushOptions options;
    options.timeout = calls_->timeout();
    end.call = calls_->Begin("EndStep", table_.plan.name);
    end.ticket = client_->EndStep(table_.handle, options);
    flights.push_back(std::move(end));
  }
  if (!Settle(&flights)) return false;
  ++step_;
  return table_.plan.consistency != v1::CONSISTENCY_SSP || ReadOne();
}

Reader::Reader(Client* client, CallCheck* calls, std::vector<OpenTable> tables, bool callbacks,
               uint64_t seed)
    : client_(client),
      calls_(calls),
      tables_(std::move(tables)),
      callbacks_(callbacks),
      draw_(seed) {}

bool Reader::Good(const std::string& problem) {
  if (!problem.empty()) calls_->Fail(problem);
  return problem.empty();
}

Region Reader::Memory(size_t bytes) {
  const bool allocated = !draw_.OneIn(4);
  if (!allocated) own_.resize(std::max(own_.size(), bytes / sizeof(float)));
  const CallCheck::Call call = calls_->Begin(allocated ? "AllocateRegion" : "RegisterRegion", "");
  auto region =
      allocated ? client_->AllocateRegion(bytes) : client_->RegisterRegion(own_.data(), bytes);
  if (!calls_->End(call, region.status())) return {};
  return *std::move(region);
}

void Reader::Done(Region region) {
  if (!region.allocated() || region.size() > kMostHeldBytes) return;
  // Best while a server does not take it in: during a fault fewer are enough.
  const size_t most = calls_->ledger().disturbed() ? kMostHeld * 5 / 8 : kMostHeld;
  if (held_.size() >= most) held_.clear();
  held_.push_back(std::move(region));
}

bool Reader::Await(Ticket ticket, End end, const CallCheck::Call& call) {
  switch (end) {
    case End::kWait:
    case End::kShort:
      return calls_->End(call, ticket.Wait());
    case End::kWaitInParts:
      while (!ticket.Done()) (void)ticket.Wait(absl::Milliseconds(draw_.Between(0, 20)));
      return calls_->End(call, ticket.status());
    case End::kCallback: {
      std::mutex mutex;
      std::condition_variable changed;
      std::optional<absl::Status> ended;
      ticket.OnDone([&](absl::Status status) {
        const std::lock_guard<std::mutex> lock(mutex);
        ended = std::move(status);
        changed.notify_one();
      });
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [&] { return ended.has_value(); });
      return calls_->End(call, *ended);
    }
    case End::kCancel:
      ticket.Cancel();
      calls_->EndCancelled(call, ticket.Wait());
      return false;
  }
  return false;
}

bool Reader::ReadChunks(const OpenTable& table, End end) {
  const TablePlan& plan = table.plan;
  const uint64_t first = draw_.Between(0, plan.units - 1);
  const uint64_t count = draw_.Between(1, plan.units - first);
  Region values = Memory(count * plan.width * sizeof(float));
  if (values.size() == 0) return false;
  PullOptions options;
  const absl::Duration brief = absl::Milliseconds(draw_.Between(1, 200));
  options.timeout = end == End::kShort ? brief : calls_->timeout();
  const Reading reading(plan, table.ledger, UnitsFrom(first, count));
  const CallCheck::Call call = end == End::kShort ? calls_->BeginShort("Pull", plan.name, brief)
                                                  : calls_->Begin("Pull", plan.name);
  Ticket ticket = client_->Pull(table.handle, values, RangeOf(plan, first, count), options);
  if (!Await(ticket, end, call)) return end == End::kShort || end == End::kCancel;
  const std::string problem = reading.Check(values.floats());
  Done(std::move(values));
  return Good(problem);
}

bool Reader::ReadRows(const OpenTable& table, End end) {
  const TablePlan& plan = table.plan;
  const Reading reading(plan, table.ledger, SomeRows(&draw_, plan));
  const std::vector<uint64_t> keys = KeysOf(reading.units());
  const size_t bag = draw_.OneIn(3) ? draw_.Between(1, 16) : 0;
  const size_t vectors = bag > 0 ? (keys.size() + bag - 1) / bag : keys.size();
  Region values = Memory(vectors * plan.width * sizeof(float));
  if (values.size() == 0) return false;
  const absl::Duration brief = absl::Milliseconds(draw_.Between(1, 200));
  const absl::Duration timeout = end == End::kShort ? brief : calls_->timeout();
  const char* name = bag > 0 ? "LookupBags" : "Lookup";
  const CallCheck::Call call = end == End::kShort ? calls_->BeginShort(name, plan.name, brief)
                                                  : calls_->Begin(name, plan.name);
  Ticket ticket;
  if (bag > 0) {
    std::vector<uint64_t> offsets(vectors);
    for (size_t i = 0; i < vectors; ++i) offsets[i] = i * bag;
    BagOptions options;
    options.timeout = timeout;
    ticket = client_->LookupBags(table.handle, keys, offsets, values, options);
  } else {
    LookupOptions options;
    options.timeout = timeout;
    ticket = client_->Lookup(table.handle, keys, values, options);
  }
  if (!Await(ticket, end, call)) return end == End::kShort || end == End::kCancel;
  const std::string problem =
      bag > 0 ? reading.CheckBags(values.floats(), bag) : reading.Check(values.floats());
  Done(std::move(values));
  return Good(problem);
}

bool Reader::Announce(const OpenTable& table) {
  PrefetchOptions options;
  options.timeout = calls_->timeout();
  const CallCheck::Call call = calls_->Begin("Prefetch", table.plan.name);
  return calls_->End(
      call, client_->Prefetch(table.handle, KeysOf(SomeRows(&draw_, table.plan)), options).Wait());
}

// A scan is no snapshot, but every row that was acknowledged before it began is in it.
bool Reader::ScanRows(const OpenTable& table, bool all) {
  const TablePlan& plan = table.plan;
  const Reading everything(plan, table.ledger, UnitsFrom(0, plan.units));
  std::vector<uint64_t> least(plan.units);
  for (uint64_t i = 0; i < plan.units; ++i) least[i] = table.ledger->acked[i].load();
  ScanOptions options;
  options.timeout = calls_->timeout();
  CallCheck::Call call = calls_->Begin("Scan", plan.name);
  auto scan = client_->Scan(table.handle, options);
  if (!calls_->End(call, scan.status())) return false;
  std::vector<bool> seen(plan.units);
  std::vector<uint64_t> keys;
  std::vector<float> rows;
  for (;;) {
    call = calls_->Begin("Scan, next rows of", plan.name);
    const auto more = scan->Next(&keys, &rows);
    if (!calls_->End(call, more.status())) return false;
    if (!*more) break;
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint64_t unit = (keys[i] - 3) / 9'000'011;
      if (unit >= plan.units || KeyOf(unit) != keys[i]) {
        return Good(absl::StrCat(plan.name, ": a scan has key ", keys[i], ", never pushed"));
      }
      seen[unit] = true;
      const double value = -static_cast<double>(rows[i * plan.width]);
      const auto most = static_cast<double>(table.ledger->attempted[unit].load());
      if (value < static_cast<double>(least[unit]) || value > most) {
        return Good(absl::StrCat(plan.name, ": a scan has ", value, " for row ", unit, " where ",
                                 least[unit], " to ", most, " pushes were made"));
      }
    }
  }
  for (uint64_t unit = 0; unit < plan.units; ++unit) {
    if (!seen[unit] && least[unit] > 0) {
      return Good(absl::StrCat(plan.name, ": a scan has no row ", unit, " of ", least[unit],
                               " acknowledged pushes", all ? " (at the end)" : ""));
    }
  }
  return true;
}

bool Reader::Read() {
  const OpenTable& table = draw_.Of(tables_);
  static const std::vector<End> kEnds = {End::kWait, End::kWait, End::kWait, End::kWaitInParts};
  End end = draw_.Of(kEnds);
  if (callbacks_ && draw_.OneIn(4)) end = End::kCallback;
  if (draw_.OneIn(16)) end = End::kShort;
  if (draw_.OneIn(64)) end = End::kCancel;
  if (!table.plan.embedding()) return ReadChunks(table, end);
  if (draw_.OneIn(16)) return Announce(table);
  if (draw_.OneIn(256)) return ScanRows(table, false);
  return ReadRows(table, end);
}

bool Reader::ReadAll(const OpenTable& table) {
  const TablePlan& plan = table.plan;
  for (uint64_t unit = 0; unit < plan.units; ++unit) {
    const uint64_t acked = table.ledger->acked[unit].load();
    const uint64_t attempted = table.ledger->attempted[unit].load();
    if (acked != attempted) {
      return Good(absl::StrCat(plan.name, " unit ", unit, ": ", attempted, " pushes and only ",
                               acked, " acknowledged at the end"));
    }
  }
  const Region values = Memory(plan.elements() * sizeof(float));
  if (values.size() == 0) return false;
  const Reading reading(plan, table.ledger, UnitsFrom(0, plan.units));
  const CallCheck::Call call = calls_->Begin("last reading of", plan.name);
  PullOptions pull;
  LookupOptions lookup;
  pull.timeout = lookup.timeout = calls_->timeout();
  Ticket ticket = plan.embedding()
                      ? client_->Lookup(table.handle, KeysOf(reading.units()), values, lookup)
                      : client_->Pull(table.handle, values, {}, pull);
  if (!calls_->End(call, ticket.Wait())) return false;
  if (!Good(reading.Check(values.floats()))) return false;
  return !plan.embedding() || ScanRows(table, true);
}

}  // namespace verbena::test
