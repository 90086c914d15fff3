// Calls on the data of tables.
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "worker/python/core/client.h"
#include "worker/python/core/waits.h"

namespace verbena::python {
namespace {

using OperationPointer = std::shared_ptr<Operation>;

// Starts an operation that reads or writes `part`, on the stream of the argument.
template <typename F>
Outcome OnStream(const Client::Part& part, F start) {
  Region& region = *part.placed.region;
  if (region.extent().kind != VERBENA_MEMORY_CUDA) return WithoutGil(start);
  return WithoutGil([&] {
    const std::lock_guard<std::mutex> lock(region.stream_mutex());
    verbena_region_set_stream(region.handle(), part.stream);
    return start();
  });
}

void RequireEmbedding(const Table& table) {
  if (table.embedding()) return;
  throw py::value_error(std::string("table '") + table.info().name +
                        "' is dense; allowed: an embedding table");
}

// ---- dense tables -------------------------------------------------------------------------------

// `write`: of the type of verbena_push().
template <typename F>
OperationPointer Write(Client& client, F write, const Table& table, const py::object& argument,
                       const char* name, Element element, uint64_t first, const py::object& count,
                       const py::object& timeout) {
  const int64_t timeout_ms = Milliseconds(timeout);
  const uint64_t elements = table.Count(first, count);
  const Buffer buffer = Describe(argument, {name, element, elements, false});
  Client::Part part = client.Use(buffer);
  const verbena_range range = {first, elements, part.placed.offset};
  verbena_ticket* ticket = nullptr;
  const Outcome outcome = OnStream(part, [&] {
    return write(client.handle(), table.handle(), part.placed.region->handle(), &range, timeout_ms,
                 &ticket);
  });
  return client.Started(outcome, ticket, {std::move(part.pin)}, py::none());
}

OperationPointer Push(Client& client, const Table& table, const py::object& gradient,
                      uint64_t first, const py::object& count, const py::object& timeout) {
  return Write(client, verbena_push, table, gradient, "gradient", table.gradient_element(), first,
               count, timeout);
}

OperationPointer Assign(Client& client, const Table& table, const py::object& parameters,
                        uint64_t first, const py::object& count, const py::object& timeout) {
  return Write(client, verbena_assign, table, parameters, "parameters", table.element(), first,
               count, timeout);
}

uint64_t MinVersion(const std::optional<uint64_t>& min_version) {
  return min_version.value_or(VERBENA_MIN_VERSION_DEFAULT);
}

OperationPointer Pull(Client& client, const Table& table, const py::object& destination,
                      uint64_t first, const py::object& count,
                      const std::optional<uint64_t>& min_version,
                      const std::optional<uint32_t>& max_staleness_ms, const py::object& timeout) {
  const int64_t timeout_ms = Milliseconds(timeout);
  const uint64_t elements = table.Count(first, count);
  const Buffer buffer = Describe(destination, {"destination", table.element(), elements, true});
  Client::Part part = client.Use(buffer);
  const verbena_range range = {first, elements, part.placed.offset};
  verbena_ticket* ticket = nullptr;
  const Outcome outcome = OnStream(part, [&] {
    const verbena_region* const to = part.placed.region->handle();
    if (max_staleness_ms.has_value()) {
      return verbena_pull_any(client.handle(), table.handle(), to, &range, MinVersion(min_version),
                              *max_staleness_ms, timeout_ms, &ticket);
    }
    return verbena_pull(client.handle(), table.handle(), to, &range, MinVersion(min_version),
                        timeout_ms, &ticket);
  });
  return client.Started(outcome, ticket, {std::move(part.pin)}, destination);
}

OperationPointer AssignState(Client& client, const Table& table, const std::string& array,
                             const py::object& state, uint64_t applies, uint64_t first,
                             const py::object& count, const py::object& timeout) {
  const auto assign = [&](verbena_client* to, const verbena_table* of, const verbena_region* region,
                          const verbena_range* range, int64_t timeout_ms, verbena_ticket** ticket) {
    return verbena_assign_state(to, of, array.c_str(), applies, region, range, timeout_ms, ticket);
  };
  return Write(client, assign, table, state, "state", Element::kFloat32, first, count, timeout);
}

OperationPointer PullState(Client& client, const Table& table, const std::string& array,
                           const py::object& destination, uint64_t first, const py::object& count,
                           const std::optional<uint64_t>& min_version, const py::object& timeout) {
  const int64_t timeout_ms = Milliseconds(timeout);
  const uint64_t elements = table.Count(first, count);
  const Buffer buffer = Describe(destination, {"destination", Element::kFloat32, elements, true});
  Client::Part part = client.Use(buffer);
  const verbena_range range = {first, elements, part.placed.offset};
  verbena_ticket* ticket = nullptr;
  const Outcome outcome = OnStream(part, [&] {
    return verbena_pull_state(client.handle(), table.handle(), array.c_str(),
                              part.placed.region->handle(), &range, MinVersion(min_version),
                              timeout_ms, &ticket);
  });
  return client.Started(outcome, ticket, {std::move(part.pin)}, destination);
}

OperationPointer PushPull(Client& client, const Table& table, const py::object& gradient,
                          const py::object& destination, uint64_t first, const py::object& count,
                          const py::object& timeout) {
  const int64_t timeout_ms = Milliseconds(timeout);
  const uint64_t elements = table.Count(first, count);
  const Buffer from = Describe(gradient, {"gradient", table.gradient_element(), elements, false});
  const Buffer to = Describe(destination, {"destination", table.element(), elements, true});
  Client::Part push = client.Use(from), pull = client.Use(to);
  const verbena_range range = {first, elements, push.placed.offset};
  verbena_ticket* ticket = nullptr;
  const Outcome outcome = OnStream(push, [&] {
    return verbena_push_pull_to(client.handle(), table.handle(), push.placed.region->handle(),
                                pull.placed.region->handle(), &range, pull.placed.offset,
                                timeout_ms, &ticket);
  });
  std::vector<Pin> pins;
  pins.reserve(2);
  pins.push_back(std::move(push.pin));
  pins.push_back(std::move(pull.pin));
  return client.Started(outcome, ticket, std::move(pins), destination);
}

OperationPointer EndStep(Client& client, const Table& table, const py::object& timeout) {
  const int64_t timeout_ms = Milliseconds(timeout);
  verbena_ticket* ticket = nullptr;
  const Outcome outcome = WithoutGil(
      [&] { return verbena_end_step(client.handle(), table.handle(), timeout_ms, &ticket); });
  return client.Started(outcome, ticket, {}, py::none());
}

void SetPriority(Client& client, const Table& table, int32_t priority) {
  Check(WithoutGil(
      [&] { return verbena_table_set_priority(client.handle(), table.handle(), priority); }));
}

OperationPointer SetOptimizer(Client& client, const Table& table, const std::optional<double>& rate,
                              const std::vector<std::pair<std::string, double>>& parameters,
                              const py::object& timeout) {
  const int64_t timeout_ms = Milliseconds(timeout);
  std::vector<verbena_parameter> values;
  for (const auto& [name, value] : parameters) values.push_back({name.c_str(), value});
  verbena_ticket* ticket = nullptr;
  const Outcome outcome = WithoutGil([&] {
    return verbena_set_optimizer(client.handle(), table.handle(), rate ? &*rate : nullptr,
                                 values.data(), values.size(), timeout_ms, &ticket);
  });
  return client.Started(outcome, ticket, {}, py::none());
}

// ---- embedding tables ---------------------------------------------------------------------------

const uint64_t* Keys(const Numbers& keys) { return static_cast<const uint64_t*>(keys.data); }

// Calls `start(region, offset, &ticket)` with the rows' place, where there are any.
template <typename F>
OperationPointer WithRows(Client& client, const Table& table, const py::object& rows,
                          const char* name, size_t count, bool written, F start) {
  const Buffer buffer =
      Describe(rows, {name, Element::kFloat32, count * table.info().dim, written});
  // A region has at least a byte: an argument without rows is not used.
  Client::Part part;
  if (count == 0) {
    part.placed = {client.Allocate(sizeof(float)), 0};
  } else {
    part = client.Use(buffer);
  }
  verbena_ticket* ticket = nullptr;
  const Outcome outcome =
      WithoutGil([&] { return start(part.placed.region->handle(), part.placed.offset, &ticket); });
  return client.Started(outcome, ticket, {std::move(part.pin)},
                        written ? rows : py::object(py::none()));
}

using WriteRowsFunction = decltype(&verbena_push_rows);

OperationPointer WriteRows(Client& client, WriteRowsFunction write, const Table& table,
                           const py::object& keys, const py::object& rows, const char* name,
                           const py::object& timeout) {
  RequireEmbedding(table);
  const int64_t timeout_ms = Milliseconds(timeout);
  const Numbers numbers = DescribeIntegers(keys, "keys");
  return WithRows(client, table, rows, name, numbers.count, false,
                  [&](verbena_region* region, uint64_t offset, verbena_ticket** ticket) {
                    return write(client.handle(), table.handle(), Keys(numbers), numbers.count,
                                 region, offset, timeout_ms, ticket);
                  });
}

OperationPointer PushRows(Client& client, const Table& table, const py::object& keys,
                          const py::object& gradients, const py::object& timeout) {
  return WriteRows(client, verbena_push_rows, table, keys, gradients, "gradients", timeout);
}

OperationPointer AssignRows(Client& client, const Table& table, const py::object& keys,
                            const py::object& rows, const py::object& timeout) {
  return WriteRows(client, verbena_assign_rows, table, keys, rows, "rows", timeout);
}

OperationPointer Lookup(Client& client, const Table& table, const py::object& keys,
                        const py::object& rows, const std::optional<uint64_t>& min_version,
                        const py::object& timeout) {
  RequireEmbedding(table);
  const int64_t timeout_ms = Milliseconds(timeout);
  const Numbers numbers = DescribeIntegers(keys, "keys");
  return WithRows(client, table, rows, "rows", numbers.count, true,
                  [&](verbena_region* region, uint64_t offset, verbena_ticket** ticket) {
                    return verbena_lookup(client.handle(), table.handle(), Keys(numbers),
                                          numbers.count, region, offset, MinVersion(min_version),
                                          timeout_ms, ticket);
                  });
}

int32_t BagMode(const std::string& mode) {
  if (mode == "sum") return VERBENA_BAG_SUM;
  if (mode == "mean") return VERBENA_BAG_MEAN;
  if (mode == "sqrtn") return VERBENA_BAG_SQRTN;
  throw py::value_error("mode is '" + mode + "'; allowed: sum, mean, sqrtn");
}

OperationPointer LookupBags(Client& client, const Table& table, const py::object& keys,
                            const py::object& offsets, const py::object& sums,
                            const py::object& weights, const std::string& mode,
                            const std::optional<uint64_t>& min_version, const py::object& timeout) {
  RequireEmbedding(table);
  const int64_t timeout_ms = Milliseconds(timeout);
  const int32_t bag_mode = BagMode(mode);
  const Numbers numbers = DescribeIntegers(keys, "keys");
  const Numbers starts = DescribeIntegers(offsets, "offsets");
  Numbers factors;
  if (!weights.is_none()) {
    factors = DescribeFloats(weights, "weights");
    if (factors.count != numbers.count) {
      throw py::value_error("weights has " + std::to_string(factors.count) +
                            " elements; allowed: " + std::to_string(numbers.count) +
                            ", the number of keys");
    }
  }
  return WithRows(client, table, sums, "sums", starts.count, true,
                  [&](verbena_region* region, uint64_t offset, verbena_ticket** ticket) {
                    return verbena_lookup_bags(
                        client.handle(), table.handle(), Keys(numbers), numbers.count, Keys(starts),
                        starts.count, static_cast<const float*>(factors.data), bag_mode, region,
                        offset, MinVersion(min_version), timeout_ms, ticket);
                  });
}

OperationPointer Prefetch(Client& client, const Table& table, const py::object& keys,
                          const py::object& timeout) {
  RequireEmbedding(table);
  const int64_t timeout_ms = Milliseconds(timeout);
  const Numbers numbers = DescribeIntegers(keys, "keys");
  verbena_ticket* ticket = nullptr;
  const Outcome outcome = WithoutGil([&] {
    return verbena_prefetch(client.handle(), table.handle(), Keys(numbers), numbers.count,
                            timeout_ms, &ticket);
  });
  return client.Started(outcome, ticket, {}, py::none());
}

}  // namespace

void Client::Scan(const Table& table, const py::function& show, const py::object& timeout) {
  RequireEmbedding(table);
  const int64_t timeout_ms = Milliseconds(timeout);
  // `error`: raised by `show`, which ends the scan.
  struct State {
    const py::function& show;
    size_t dim;
    std::optional<py::error_already_set> error;
  } state = {show, table.info().dim, {}};
  const Outcome outcome = WithoutGil([&] {
    return verbena_scan(
        handle(), table.handle(), timeout_ms,
        [](const uint64_t* keys, const float* rows, size_t count, void* user) {
          const py::gil_scoped_acquire gil;
          auto* const s = static_cast<State*>(user);
          try {
            const auto bytes = [](const void* data, size_t size) {
              return py::bytes(static_cast<const char*>(data), size);
            };
            return s->show(bytes(keys, count * sizeof(uint64_t)),
                           bytes(rows, count * s->dim * sizeof(float)))
                           .template cast<bool>()
                       ? 0
                       : 1;
          } catch (py::error_already_set& error) {
            s->error.emplace(std::move(error));
            return 1;
          }
        },
        &state);
  });
  if (state.error) throw std::move(*state.error);
  Check(outcome);
}

void DefineData(py::class_<Client, std::shared_ptr<Client>>& client) {
  const auto no_timeout = py::arg("timeout") = py::none();
  const auto from_start = py::arg("first") = 0;
  const auto to_end = py::arg("count") = py::none();
  const auto any_version = py::arg("min_version") = py::none();
  client
      .def("push", &Push, py::arg("table"), py::arg("gradient"), py::kw_only(), from_start, to_end,
           no_timeout, R"(
Pushes a gradient for this worker's open step.

gradient: numbers of table.gradient_dtype, as many as the table or the range has; read until the
    operation has ended, with replicas until the step is committed.
first, count: the range in elements; it starts at a multiple of table.chunk_elements.
timeout: seconds until the operation ends with DeadlineExceededError; default: the client's.

sync: done when the step is committed, so call end_step() before waiting. async, ssp: done when the
gradient is applied. A NaN or infinity is an InvalidArgumentError, or as the option non_finite has it.)")
      .def("assign", &Assign, py::arg("table"), py::arg("parameters"), py::kw_only(), from_start,
           to_end, no_timeout, R"(
Writes parameters as they are in place of those of the table or range; otherwise as push().

parameters: numbers of table.dtype.

The optimizer's state stays. sync: a contribution to this worker's open step in place of a gradient;
of several workers that assign a chunk in a step the one with the highest rank counts.)")
      .def("assign_state", &AssignState, py::arg("table"), py::arg("array"), py::arg("state"),
           py::kw_only(), py::arg("applies"), from_start, to_end, no_timeout, R"(
Writes an array of the optimizer's state as it is in place of that of the table or range.

array: its name, one of table.state_arrays.
state: float32, as many as the table or range has elements.
applies: the count of applies after it, by which schedules and bias corrections go: the `step` of
    torch.optim.

Otherwise as assign(): sync: a contribution to this worker's open step in place of a gradient, so
each array takes a step. The parameters and other arrays stay, but "master" gives the parameters,
too. Assign parameters before state: that counts as an apply.)")
      .def("_pull_state", &PullState, py::arg("table"), py::arg("array"), py::arg("destination"),
           py::kw_only(), from_start, to_end, any_version, no_timeout)
      .def("_pull", &Pull, py::arg("table"), py::arg("destination"), py::kw_only(), from_start,
           to_end, any_version, py::arg("max_staleness_ms") = py::none(), no_timeout)
      .def("push_pull", &PushPull, py::arg("table"), py::arg("gradient"), py::arg("destination"),
           py::kw_only(), from_start, to_end, no_timeout, R"(
Pushes a gradient, then pulls parameters that include it; wait() returns `destination`.

gradient, destination: as push() and pull(); they may be the same memory if both types are equal, and
    do not overlap otherwise.

sync: a push_pull of the whole table also ends the step; a push_pull of a range does not.)")
      .def("end_step", &EndStep, py::arg("table"), py::kw_only(), no_timeout, R"(
Ends this worker's open step of the table; elements without a push count as zero.

The next step is open at once. sync: done when the step is committed on every partition; every
worker of the job ends each step.)")
      .def("set_priority", &SetPriority, py::arg("table"), py::arg("priority"), R"(
Sets the priority of this client's requests for a table; initially 0.

Where requests wait for a connection, those of tables with greater numbers are sent first: the
parameters that are needed next arrive before others that were requested earlier. It changes no
result.)")
      .def("_set_optimizer", &SetOptimizer, py::arg("table"), py::arg("rate"),
           py::arg("parameters"), py::arg("timeout"))
      .def("push_rows", &PushRows, py::arg("table"), py::arg("keys"), py::arg("gradients"),
           py::kw_only(), no_timeout, R"(
Pushes gradients of rows of an embedding table; done as push().

keys: up to 4194304 uint64 or int64 (with the same bits); an array, a tensor or a sequence. They are
    copied and may repeat: the gradients of a repeated key are summed.
gradients: float32 [len(keys), dim], or any shape with as many elements.

A missing row is created. Also ResourceExhaustedError: no room for new rows.)")
      .def("assign_rows", &AssignRows, py::arg("table"), py::arg("keys"), py::arg("rows"),
           py::kw_only(), no_timeout, R"(
Writes rows as they are in place of those of the keys; arguments as push_rows().

The last row of a repeated key counts. A missing row is created.)")
      .def("_lookup", &Lookup, py::arg("table"), py::arg("keys"), py::arg("rows"), py::kw_only(),
           any_version, no_timeout)
      .def("_lookup_bags", &LookupBags, py::arg("table"), py::arg("keys"), py::arg("offsets"),
           py::arg("sums"), py::kw_only(), py::arg("weights") = py::none(), py::arg("mode") = "sum",
           any_version, no_timeout)
      .def("prefetch", &Prefetch, py::arg("table"), py::arg("keys"), py::kw_only(), no_timeout, R"(
Announces that these keys will be looked up or pushed soon.

Servers of a table with a cold tier (the option hot_bytes) load their rows from disk. It changes no
result. Done when the servers have the announcement.)");
}

}  // namespace verbena::python
