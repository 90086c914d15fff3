// The parameters on a cluster, through verbena::Client: one dense table for each tensor, one
// embedding table for each of the model's. The arenas are f32. 16-bit types are converted:
// gradients when they are pushed, parameters in the Wait() after their pull.
//
// **Thread safety**: one thread; `stop` may be set from anywhere.
#ifndef VERBENA_WORKER_STORES_CLIENT_STORE_H_
#define VERBENA_WORKER_STORES_CLIENT_STORE_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rdma/memory/device.h"
#include "verbena/client.h"
#include "worker/cuda/gpu_group.h"
#include "worker/stores/client_rows.h"
#include "worker/stores/parameter_store.h"

namespace verbena::worker {

struct ClusterOptions {
  std::string cluster;  // host:port
  std::string job;
  std::string transport = "auto";
  RdmaOptions rdma;
  FabricOptions fabric;
  TlsOptions tls;
  std::string token_file;
  int rank = 0;
  uint32_t workers = 1;
  uint32_t max_workers = 0;  // not 0: the job is elastic; then `rank` is not used
  std::vector<std::shared_ptr<rdma::Device>> devices;  // that have the model's arenas
  bool resume = false;  // the tables have to be there: FAILED_PRECONDITION names one that is not
  absl::Duration timeout = absl::Seconds(30);
  const std::atomic<bool>* stop = nullptr;  // ends every wait with CANCELLED
};

class ClientStore : public ParameterStore {
 public:
  // Joins the job, then creates or opens the tables JOB/TENSOR; waits up to the timeout for a
  // cluster that is still assembling.
  static absl::StatusOr<std::unique_ptr<ClientStore>> Connect(
      const ClusterOptions& options, const Layout& layout, absl::Span<const EmbeddingTable> tables,
      const TrainingSpec& spec);

  const Layout& layout() const override { return layout_; }
  uint64_t run() const override { return client_->run().id; }
  int rank() const { return client_->rank(); }
  // Elastic: whether another worker makes the next step, or no other one has joined the run.
  bool MayLeave() const;
  float* gradient() override { return gradient_->floats(); }
  float* parameters() override { return parameters_->floats(); }
  absl::Span<float* const> device_gradients() const override { return gpu_gradients_.arenas; }
  absl::Span<float* const> device_parameters() const override { return gpu_parameters_.arenas; }
  void Push(size_t tensor) override;
  void EndStep() override;
  void Pull(size_t tensor) override;
  absl::StatusOr<std::vector<AppliedSteps>> PullApplied() override;
  absl::Status Wait() override;
  ClientRows* rows() override { return rows_.get(); }
  StoreStatistics statistics() const override;

  absl::Status DropTables();

 private:
  // Arenas of each GPU.
  struct GpuArenas {
    std::vector<Region> regions;
    std::vector<float*> arenas;
  };

  ClientStore(const ClusterOptions& options, const Layout& layout)
      : options_(options), layout_(layout) {}
  absl::Status CreateTables(absl::Span<const EmbeddingTable> embeddings, const TrainingSpec& spec);
  absl::StatusOr<Table> CreateTable(const v1::TableSpec& spec, absl::Time deadline);
  // A refusal of a table that exists: by the trainer's options from which the difference follows.
  absl::Status OfOptions(const absl::Status& status, size_t index,
                         const std::vector<std::string>& sizes) const;
  absl::Status AllocateRegions(const TrainingSpec& spec);
  // Notes the versions of the pull that it is for, during PullApplied().
  PullOptions PullOptionsFor(size_t tensor);
  // Where a tensor lies in an arena, or region, of such elements.
  Range RangeOf(size_t tensor, size_t element_bytes) const;
  bool on_device() const { return !options_.devices.empty(); }
  // Whether the model's GPUs have it.
  bool OnDevice(size_t tensor) const { return on_device() && !layout_[tensor].counter; }
  absl::Status AllocateOnDevices();
  // The part of a tensor that each GPU pushes and pulls.
  std::vector<GpuGroup::Slice> SlicesOf(size_t tensor) const;
  Range RangeOf(size_t tensor, const GpuGroup::Slice& slice) const;
  void PushSlices(size_t tensor);
  void PullSlices(size_t tensor);
  // Copies pulled parameters to all GPUs and to parameters().
  absl::Status SpreadParameters();
  // Widens a tensor that was pulled in 16 bits.
  void Widen(size_t tensor);

  ClusterOptions options_;
  Layout layout_;
  // Before the regions and tickets: users of the client are destroyed first.
  std::unique_ptr<Client> client_;
  std::vector<Table> tables_;
  uint64_t steps_ = 0;  // that this worker has ended
  bool notes_versions_ = false;
  std::vector<std::pair<size_t, std::shared_ptr<StateVersions>>> versions_;  // by tensor
  std::optional<Region> gradient_, parameters_;
  GpuArenas gpu_gradients_, gpu_parameters_;
  std::unique_ptr<GpuGroup> group_;                 // of several GPUs
  std::vector<GpuGroup::Slice> pulled_to_devices_;  // since the last Wait()
  absl::Status reduced_;                            // the first error since then
  // 16-bit arenas with the layout of the f32 ones; none if no table needs them.
  std::optional<Region> narrow_gradient_, narrow_parameters_;
  std::vector<size_t> narrow_pulls_;  // tensors, since the last Wait()
  std::vector<Ticket> tickets_;
  std::unique_ptr<ClientRows> rows_;
};

// The specification for CreateTable().
v1::TableSpec TableSpecOf(const Tensor& tensor, size_t index, const std::string& job,
                          const TrainingSpec& spec);
v1::TableSpec TableSpecOf(const EmbeddingTable& table, size_t index, const std::string& job,
                          const TrainingSpec& spec);

}  // namespace verbena::worker

#endif  // VERBENA_WORKER_STORES_CLIENT_STORE_H_
