// A worker's or observer's connection to a cluster.
//
// **Thread safety**: the caller holds the GIL; calls of the library run without it.
#ifndef VERBENA_WORKER_PYTHON_CORE_CLIENT_H_
#define VERBENA_WORKER_PYTHON_CORE_CLIENT_H_

#include <pybind11/pybind11.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "worker/python/core/operation.h"
#include "worker/python/core/region.h"
#include "worker/python/core/table.h"

namespace verbena::python {

class Client {
 public:
  // Options of verbena_connect_options by name. TypeError: one is unknown or has another type.
  explicit Client(const py::dict& options);
  // Close(): memory of operations in flight may be freed afterwards.
  ~Client();

  void Close();
  bool closed() const { return closed_; }
  py::dict Info() const;
  py::dict Statistics() const;
  py::list Members(const Table& table) const;
  uint64_t FirstStep(const Table& table) const;
  py::list Lanes() const;

  // `settings`: names and values of table options as texts.
  std::shared_ptr<Table> CreateTable(
      const std::vector<std::pair<std::string, std::string>>& settings, const py::object& timeout);
  std::shared_ptr<Table> OpenTable(const std::string& name, const py::object& timeout);
  void DropTable(const std::string& name, const py::object& timeout);
  py::list Tables(const py::object& timeout) const;
  void Scan(const Table& table, const py::function& show, const py::object& timeout);

  std::shared_ptr<Region> Allocate(size_t bytes);
  // Regions of memory that Python objects own.
  size_t registered_regions() const { return cache_->registered(); }

  // ---- for the calls on data (data.cc) ----
  verbena_client* handle() const { return library_->handle; }
  // The argument's region, and a reference that keeps its memory.
  struct Part {
    Placed placed;
    Pin pin;
    void* stream = nullptr;
  };
  Part Use(const Buffer& buffer);
  // The handle of an operation that was started, or its error.
  std::shared_ptr<Operation> Started(const Outcome& outcome, verbena_ticket* ticket,
                                     std::vector<Pin> pins, py::object result);

 private:
  // Drops the pins of operations that have ended, of some each time.
  void Sweep();
  // Drops the pins of all. Requires that the library has closed the client.
  void ReleaseAll();

  const std::shared_ptr<LibraryClient> library_;
  const std::shared_ptr<RegionCache> cache_;
  // Operations whose memory the library may still use.
  std::deque<std::shared_ptr<Operation>> in_flight_;
  bool closed_ = false;
};

void DefineClient(py::module_& module);
// Pushes, pulls and the calls of embedding tables.
void DefineData(py::class_<Client, std::shared_ptr<Client>>& client);

}  // namespace verbena::python

#endif  // VERBENA_WORKER_PYTHON_CORE_CLIENT_H_
