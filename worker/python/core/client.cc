#include "worker/python/core/client.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <utility>

#include "worker/python/core/connect.h"
#include "worker/python/core/waits.h"

namespace verbena::python {
namespace {

// Operations in flight that one call looks at: more than it adds.
constexpr size_t kSweptAtOnce = 4;

// A table's handle of a call that may have been given up.
struct NewTable {
  verbena_table* handle = nullptr;
  ~NewTable() { verbena_table_free(handle); }
  std::shared_ptr<Table> Take() { return std::make_shared<Table>(std::exchange(handle, nullptr)); }
};

}  // namespace

Client::Client(const py::dict& options)
    : library_(Connect(options)), cache_(std::make_shared<RegionCache>(library_)) {}

Client::~Client() {
  {
    const ReleasedGil released;
    verbena_close(library_->handle);  // waits for a Close() that Ctrl-C gave up
  }
  ReleaseAll();
}

void Client::ReleaseAll() {
  // Dropping a reference may run Python code that calls this client.
  const auto ended = std::move(in_flight_);
  in_flight_.clear();
  for (const auto& operation : ended) operation->ReleaseAll();
  cache_->Clear();
}

void Client::Close() {
  closed_ = true;
  Check(Interruptible([library = library_] { return verbena_close(library->handle); }));
  ReleaseAll();
}

py::dict Client::Info() const {
  verbena_client_info info = {};
  info.struct_size = sizeof(info);
  Check(WithoutGil([&] { return verbena_client_get_info(handle(), &info); }));
  py::dict all;
  all["incarnation"] = info.incarnation;
  all["rank"] = info.rank;
  all["live_workers"] = info.live_workers;
  return all;
}

py::list Client::Members(const Table& table) const {
  struct Copy {
    uint64_t incarnation;
    std::string name;
    int32_t rank;
    uint64_t first_step;
  };
  std::vector<Copy> copies;
  Check(WithoutGil([&] {
    return verbena_client_list_members(
        handle(), table.handle(),
        [](const verbena_member* m, void* user) {
          static_cast<std::vector<Copy>*>(user)->push_back(
              {m->incarnation, m->name, m->rank, m->first_step});
        },
        &copies);
  }));
  py::list members;
  for (const Copy& copy : copies) {
    py::dict member;
    member["incarnation"] = copy.incarnation;
    member["name"] = copy.name;
    member["rank"] = copy.rank;
    member["first_step"] = copy.first_step;
    members.append(member);
  }
  return members;
}

uint64_t Client::FirstStep(const Table& table) const {
  uint64_t step = 0;
  Check(WithoutGil([&] { return verbena_first_step(handle(), table.handle(), &step); }));
  return step;
}

py::dict Client::Statistics() const {
  verbena_statistics s = {};
  s.struct_size = sizeof(s);
  Check(WithoutGil([&] { return verbena_client_get_statistics(handle(), &s); }));
  py::dict all;
  all["bytes_pushed"] = s.bytes_pushed;
  all["bytes_pulled"] = s.bytes_pulled;
  all["pushes"] = s.pushes;
  all["pulls"] = s.pulls;
  all["records_resent"] = s.records_resent;
  all["lanes_opened"] = s.lanes_opened;
  all["lanes_lost"] = s.lanes_lost;
  all["credit_stalls"] = s.credit_stalls;
  all["staged_bytes"] = s.staged_bytes;
  all["rail_moves"] = s.rail_moves;
  all["referenced_bytes"] = s.referenced_bytes;
  all["direct_bytes"] = s.direct_bytes;
  py::list staleness;
  for (const uint64_t pulls : s.staleness) staleness.append(pulls);
  all["staleness"] = staleness;
  all["follower_pulls"] = s.follower_pulls;
  all["follower_redirects"] = s.follower_redirects;
  return all;
}

py::list Client::Lanes() const {
  // The callback runs without the GIL.
  struct Lane {
    uint64_t server;
    uint32_t shard, rail;
    std::string transport, reason, state, device;
  };
  std::vector<Lane> lanes;
  Check(WithoutGil([&] {
    return verbena_client_list_lanes(
        handle(),
        [](const verbena_lane* lane, void* user) {
          static_cast<std::vector<Lane>*>(user)->push_back({lane->server, lane->shard, lane->rail,
                                                            lane->transport, lane->reason,
                                                            lane->state, lane->device});
        },
        &lanes);
  }));
  py::list all;
  for (const Lane& lane : lanes) {
    py::dict one;
    one["server"] = lane.server;
    one["shard"] = lane.shard;
    one["rail"] = lane.rail;
    one["transport"] = lane.transport;
    one["reason"] = lane.reason;
    one["state"] = lane.state;
    one["device"] = lane.device;
    all.append(one);
  }
  return all;
}

// ---- tables -------------------------------------------------------------------------------------

std::shared_ptr<Table> Client::CreateTable(
    const std::vector<std::pair<std::string, std::string>>& settings, const py::object& timeout) {
  const int64_t timeout_ms = Milliseconds(timeout);
  const auto table = std::make_shared<NewTable>();
  Check(Interruptible([library = library_, table, settings, timeout_ms] {
    std::vector<verbena_setting> given;
    for (const auto& [name, value] : settings) given.push_back({name.c_str(), value.c_str()});
    return verbena_table_create_with(library->handle, given.data(), given.size(), timeout_ms,
                                     &table->handle);
  }));
  return table->Take();
}

std::shared_ptr<Table> Client::OpenTable(const std::string& name, const py::object& timeout) {
  const int64_t timeout_ms = Milliseconds(timeout);
  const auto table = std::make_shared<NewTable>();
  Check(Interruptible([library = library_, table, name, timeout_ms] {
    return verbena_table_open(library->handle, name.c_str(), timeout_ms, &table->handle);
  }));
  return table->Take();
}

void Client::DropTable(const std::string& name, const py::object& timeout) {
  const int64_t timeout_ms = Milliseconds(timeout);
  Check(Interruptible([library = library_, name, timeout_ms] {
    return verbena_table_drop(library->handle, name.c_str(), timeout_ms);
  }));
}

py::list Client::Tables(const py::object& timeout) const {
  const int64_t timeout_ms = Milliseconds(timeout);
  py::list tables;
  Check(WithoutGil([&] {
    return verbena_table_list(
        handle(), timeout_ms,
        [](const verbena_table_info* info, void* user) {
          const py::gil_scoped_acquire gil;
          static_cast<py::list*>(user)->append(DescribeTable(*info));
        },
        &tables);
  }));
  return tables;
}

// ---- memory and operations ----------------------------------------------------------------------

std::shared_ptr<Region> Client::Allocate(size_t bytes) { return cache_->Allocate(bytes); }

Client::Part Client::Use(const Buffer& buffer) {
  Part part;
  part.placed = cache_->Find(buffer);
  part.pin = {buffer.pin, part.placed.region};
  part.stream = buffer.stream;
  return part;
}

std::shared_ptr<Operation> Client::Started(const Outcome& outcome, verbena_ticket* ticket,
                                           std::vector<Pin> pins, py::object result) {
  Sweep();
  if (ticket == nullptr) Check(outcome);
  const bool has_memory = !pins.empty();
  auto operation = std::make_shared<Operation>(ticket, std::move(pins), std::move(result));
  if (has_memory) in_flight_.push_back(operation);
  return operation;
}

void Client::Sweep() {
  for (size_t i = std::min(kSweptAtOnce, in_flight_.size()); i > 0; --i) {
    const auto oldest = std::move(in_flight_.front());
    in_flight_.pop_front();
    if (!oldest->Release()) in_flight_.push_back(oldest);
  }
}

// ---- Python -------------------------------------------------------------------------------------

void DefineClient(py::module_& module) {
  py::class_<Region, std::shared_ptr<Region>>(module, "Region", py::buffer_protocol(), R"(
Shared memory that a client allocated. It has the buffer protocol.)")
      .def_buffer([](Region& region) {
        return py::buffer_info(region.extent().data, static_cast<py::ssize_t>(1),
                               py::format_descriptor<uint8_t>::format(),
                               static_cast<py::ssize_t>(region.extent().bytes));
      })
      .def("__len__", [](const Region& region) { return region.extent().bytes; });

  py::class_<Client, std::shared_ptr<Client>> client(module, "Client", "Base of verbena.Client.");
  client.def(py::init<const py::dict&>(), py::arg("options"), "As connect(), with a dict.")
      .def("close", &Client::Close, R"(
Leaves the job, which takes at most 1 s. Operations in flight end with CancelledError.

A second call has no effect.)")
      .def_property_readonly("closed", &Client::closed, "Whether close() was called.")
      .def("info", &Client::Info, R"(
A dict: incarnation (0 when closed), rank (-1: an observer, or closed), live_workers.)")
      .def_property_readonly(
          "rank", [](const Client& c) { return c.Info()["rank"]; },
          "This worker's place in the order of summation; -1 for an observer, or when closed.")
      .def("members", &Client::Members, py::arg("table"), R"(
Lists the live workers of the job's run by rank, as this client last heard.

A dict for each: incarnation, name, rank, first_step (of a sync table; 0 as well when it is over). A
step waits for the workers whose first step is not later.)")
      .def("first_step", &Client::FirstStep, py::arg("table"), R"(
The step of a sync table with which this worker begins.

Its first push is a part of that step, and a pull waits for the steps before. 0 unless it has joined
a run of an elastic job.)")
      .def("statistics", &Client::Statistics, R"(
A dict of counters since connect(), such as bytes_pushed, staged_bytes and records_resent.

`staleness` is a list: pull requests to ssp tables by the steps by which the slowest worker was behind
this one. Entries: 0, 1, ... 31, and 32 or more.)")
      .def("lanes", &Client::Lanes, R"(
A list of dicts, one for each connection to a shard: transport, reason, state, device, ...)")
      .def("tables", &Client::Tables, py::arg("timeout") = py::none(), R"(
Lists all tables of the cluster: a dict for each, as Table.info.)")
      .def("open_table", &Client::OpenTable, py::arg("name"), py::kw_only(),
           py::arg("timeout") = py::none(), R"(
Opens an existing table. Raises NotFoundError if there is none.)")
      .def("drop_table", &Client::DropTable, py::arg("name"), py::kw_only(),
           py::arg("timeout") = py::none(), R"(
Drops the table and its parameters. Operations of all workers on it end with NotFoundError.)")
      .def_property_readonly("registered_regions", &Client::registered_regions,
                             "Number of storages of Python objects that are registered.")
      .def("_create_table", &Client::CreateTable, py::arg("settings"), py::arg("timeout"))
      .def("_scan", &Client::Scan, py::arg("table"), py::arg("show"), py::arg("timeout"))
      .def("_allocate", &Client::Allocate, py::arg("bytes"));
  DefineData(client);
}

}  // namespace verbena::python
