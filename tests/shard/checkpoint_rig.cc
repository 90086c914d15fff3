#include "tests/shard/checkpoint_rig.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "shard/checkpoint/checkpoints.h"
#include "shard/checkpoint/restores.h"
#include "verbena/half.h"

namespace verbena::shard {

CheckpointPlan MakeCheckpointPlan(uint32_t seed, bool rows, v1::Consistency consistency) {
  std::mt19937 random(seed * 31 + (rows ? 7 : 0) + static_cast<uint32_t>(consistency));
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  CheckpointPlan plan;
  plan.seed = seed;
  plan.rows = rows;
  plan.consistency = consistency;
  const std::vector<std::string> dense = {"sgd", "momentum", "adam", "adagrad", "ftrl", "lamb"};
  const std::vector<std::string> of_rows = {"sgd", "adam", "rowwise_adagrad", "momentum"};
  const bool sync = consistency == v1::CONSISTENCY_SYNC;
  plan.optimizer.set_name(rows ? of_rows[pick(4)] : dense[pick(sync ? 6 : 5)]);
  plan.optimizer.set_rate(0.125);
  if (pick(2) == 0) {
    v1::Schedule* schedule = plan.optimizer.mutable_schedule();
    schedule->set_kind(v1::Schedule::COSINE);
    schedule->set_period(40);
    schedule->set_warmup_steps(pick(8));
  }
  const uint32_t clip = pick(4);
  if (clip == 1) plan.optimizer.set_clip_chunk_norm(3);
  if (clip == 2 && sync && !rows) plan.optimizer.set_clip_global_norm(20);
  if (clip == 3) plan.optimizer.set_clip_value(2);
  if (!rows) {
    plan.dtype = std::vector{v1::DTYPE_F32, v1::DTYPE_BF16, v1::DTYPE_F16}[pick(3)];
    if (pick(3) == 0) plan.gradient_dtype = v1::DTYPE_BF16;
  } else {
    plan.row_dtype = std::vector{v1::DTYPE_F32, v1::DTYPE_BF16, v1::DTYPE_F16}[pick(3)];
    plan.stochastic = plan.row_dtype != v1::DTYPE_F32 && pick(2) == 0;
  }
  plan.reduction = pick(2) == 0 ? v1::REDUCTION_MEAN : v1::REDUCTION_SUM;
  plan.workers = 1 + pick(3);
  plan.servers = 1 + pick(3);
  plan.partitions = plan.servers + pick(4);
  plan.elements = 20 + pick(100);
  plan.spares = pick(3);
  return plan;
}

CheckpointRig::CheckpointRig(const CheckpointPlan& p) : plan(p), random_(p.seed) {
  view_.set_revision(1);
  for (uint32_t i = 0; i < plan.partitions; ++i) {
    v1::Partition* partition = view_.add_partitions();
    partition->set_id(i);
    partition->set_epoch(1);
    partition->set_primary(kServer + i % plan.servers);
    if (plan.copies) partition->add_followers()->set_server(kServer + (i + 1) % plan.servers);
  }
  v1::Job* job = view_.add_jobs();
  job->set_name("job");
  job->set_generation(1);
  job->set_expected_workers(plan.workers);
  for (uint32_t r = 0; r < plan.workers; ++r) {
    v1::Worker* worker = job->add_members();
    worker->set_incarnation(kFirstWorker + r);
    worker->set_rank(static_cast<int>(r));
  }
  v1::Table* table = view_.add_tables();
  table->set_id(plan.table);
  table->set_restoring(plan.restoring);
  for (uint32_t i = 0; plan.lost && i < plan.partitions; ++i) table->add_lost_partitions(i);
  v1::TableSpec* spec = table->mutable_spec();
  spec->set_name("table");
  spec->set_job("job");
  if (plan.rows) {
    spec->set_dim(plan.dim);
    *spec->mutable_eviction() = plan.eviction;
    spec->set_row_dtype(plan.row_dtype);
    spec->set_stochastic_rounding(plan.stochastic);
  } else {
    spec->add_shape(plan.elements);
  }
  spec->set_dtype(plan.dtype);
  spec->set_gradient_dtype(plan.gradient_dtype);
  spec->set_consistency(plan.consistency);
  spec->set_staleness(3);
  spec->set_reduction(plan.reduction);
  spec->set_non_finite(v1::NON_FINITE_REJECT);
  spec->mutable_initializer()->set_kind(plan.exact ? v1::Initializer::CONSTANT
                                                   : v1::Initializer::NORMAL);
  spec->mutable_initializer()->set_b(1);
  spec->mutable_initializer()->set_seed(5);
  *spec->mutable_optimizer() = plan.optimizer;
  const DenseLayout layout = LayoutOf(*spec);
  const uint32_t chunk_bytes =
      plan.chunk_elements * std::max(layout.parameter_bytes, layout.gradient_bytes);
  spec->set_chunk_bytes(plan.rows ? 256 * 1024 : (chunk_bytes + 63) / 64 * 64);
  if (plan.cold) {
    spec->set_chunk_bytes(40 * plan.dim * static_cast<uint32_t>(sizeof(float)));
    spec->mutable_cold_tier()->set_hot_bytes(1);
  }
  for (uint32_t s = 0; s < plan.servers; ++s) {
    EngineOptions options;
    if (plan.cold) {
      stores_.push_back(std::make_unique<FakeColdStore>(plan.seed));
      options.cold_store = stores_.back().get();
    }
    options.server = kServer + s;
    options.spare_buffers = plan.spares;
    options.replica_log = plan.log;
    engines_.push_back(std::make_unique<Engine>(options));
  }
  ApplyView();
  const uint32_t items = sync() && !plan.rows ? chunks() : plan.partitions;
  for (uint32_t item = 0; item < items; ++item) {
    for (uint32_t rank = 0; rank < plan.workers; ++rank) {
      streams_.push_back({rank, item, plan.first_step * (sync() && plan.rows ? 2 : 1)});
    }
  }
}

void CheckpointRig::ApplyView() {
  view_.set_revision(view_.revision() + 1);
  for (const auto& engine : engines_) {
    const absl::Status applied = engine->ApplyView(view_);
    if (!applied.ok()) error = std::string(applied.message());
  }
}

// ---- saves --------------------------------------------------------------------------------------

absl::Status CheckpointRig::Begin(PartitionCheckpointRequest request, uint64_t* newest) {
  request.id = id_ = ++last_id_;
  saved_ = {};
  *newest = 0;
  absl::Status status;
  for (const auto& engine : engines_) {
    std::vector<uint64_t> here;
    status.Update(engine->checkpoints().Begin(request, &here));
    for (const uint64_t step : here) *newest = std::max(*newest, step);
  }
  if (!status.ok()) {
    for (const auto& engine : engines_) engine->checkpoints().Abort(id_);
  }
  return status;
}

absl::Status CheckpointRig::Begin(uint64_t step, uint64_t memory_bytes) {
  PartitionCheckpointRequest request;
  request.tables.push_back({plan.table, sync() ? step : 0, 0, false});
  request.memory_bytes = memory_bytes;
  request.piece_bytes = 1 + Pick(500);
  uint64_t newest = 0;
  absl::Status begun = Begin(request, &newest);
  if (begun.code() == absl::StatusCode::kOutOfRange) {
    request.tables[0].step = newest;
    begun = Begin(request, &newest);
  }
  step_ = request.tables[0].step;
  return begun;
}

void CheckpointRig::Collect(const CheckpointPiece& piece, Saved* saved) {
  const auto array = [](absl::Span<const float> from, size_t first, size_t n) {
    return std::vector<float>(from.begin() + static_cast<ptrdiff_t>(first),
                              from.begin() + static_cast<ptrdiff_t>(first + n));
  };
  if (piece.table != plan.table || piece.epoch != GroupOf(piece.partition, 0).epoch) {
    error = "a piece is of something else";
  }
  if (piece.kind == CheckpointPiece::Kind::kEnd) {
    SavedLocalPartition& slice = saved->slices[piece.partition];
    slice.version = piece.version;
    slice.applies = piece.applies;
    for (const SavedPrefix& p : piece.prefix) slice.prefix[p.worker] = p.sequence;
    saved->incremental += piece.incremental ? 1 : 0;
  } else if (piece.kind == CheckpointPiece::Kind::kChunk) {
    SavedChunk chunk = {piece.version, piece.applies, piece.count, {}, {}, {}};
    chunk.parameters.assign(piece.parameters.begin(), piece.parameters.end());
    chunk.master = array(piece.master, 0, piece.master.size());
    for (const auto& s : piece.state) chunk.state.push_back(array(s, 0, s.size()));
    if (!saved->chunks.emplace(piece.first_element, chunk).second) error = "a chunk comes twice";
  } else {
    for (uint32_t i = 0; i < piece.count; ++i) {
      SavedRow row;
      row.applies = piece.row_applies[i];
      row.parameters.resize(plan.dim);
      std::memcpy(row.parameters.data(), piece.parameters.data() + i * plan.dim * sizeof(float),
                  plan.dim * sizeof(float));
      for (const auto& s : piece.state) {
        const size_t width = s.size() / piece.count;
        row.state.push_back(array(s, i * width, width));
      }
      const uint64_t key = piece.keys[i];
      if (PartitionOfKey(plan.table, key, plan.partitions) != piece.partition) {
        error = "a row is of another partition";
      }
      if (!saved->rows.emplace(key, row).second) error = "a row comes twice";
    }
  }
}

void CheckpointRig::ActCheckpoint() {
  const size_t e = Pick(static_cast<uint32_t>(engines_.size()));
  const absl::StatusOr<CheckpointProgress> progress = engines_[e]->checkpoints().progress(id_);
  if (progress.ok()) {
    most_memory = std::max(most_memory, progress->memory_bytes);
  }
  if (!out_.empty() && Pick(3) != 0) {
    std::swap(out_[Pick(static_cast<uint32_t>(out_.size()))], out_.back());
    const OutPiece out = out_.back();
    out_.pop_back();
    // Only now: until here nothing of it may change.
    Collect(out.piece, &saved_);
    engines_[out.engine]->checkpoints().Release(id_, out.piece.id);
    return;
  }
  CheckpointPiece piece;
  if (out_.size() < 6 && engines_[e]->checkpoints().Take(id_, &piece)) out_.push_back({e, piece});
}

void CheckpointRig::ReleaseAll() {
  for (const OutPiece& out : out_) engines_[out.engine]->checkpoints().Release(id_, out.piece.id);
  out_.clear();
}

std::vector<CheckpointPiece> CheckpointRig::Out() const {
  std::vector<CheckpointPiece> pieces;
  for (const OutPiece& out : out_) pieces.push_back(out.piece);
  return pieces;
}

bool CheckpointRig::CheckpointComplete() {
  return out_.empty() && std::all_of(engines_.begin(), engines_.end(), [&](const auto& engine) {
           const absl::StatusOr<CheckpointProgress> progress = engine->checkpoints().progress(id_);
           return progress.ok() && progress->complete();
         });
}

bool CheckpointRig::FinishCheckpoint() {
  const uint32_t pace = 2 + Pick(8);  // workers may be far quicker than the disk
  for (uint32_t i = 0; i < 400000 && error.empty(); ++i) {
    if (Done() && CheckpointComplete()) break;
    if (Pick(pace) == 0) {
      ActCheckpoint();
    } else {
      Act();
    }
  }
  return Finish() && CheckpointComplete();
}

Saved CheckpointRig::CheckpointIdle() {
  UnpinAll();  // applies that wait for the pins go on
  const Saved before = saved_;
  PartitionCheckpointRequest request;
  uint64_t newest = 0;
  request.tables.push_back({plan.table, sync() ? Newest() : 0, 0, false});
  request.piece_bytes = 100000;
  const uint64_t id = id_;
  for (const auto& engine : engines_) engine->checkpoints().Commit(id_);
  absl::Status begun = Begin(request, &newest);
  if (begun.code() == absl::StatusCode::kOutOfRange) {
    request.tables[0].step = newest;
    begun = Begin(request, &newest);
  }
  if (!begun.ok()) error = std::string(begun.message());
  Saved saved;
  for (const auto& engine : engines_) {
    CheckpointPiece piece;
    while (engine->checkpoints().Take(id_, &piece)) {
      Collect(piece, &saved);
      engine->checkpoints().Release(id_, piece.id);
    }
  }
  if (!CheckpointComplete()) error = "an idle save does not end";
  for (const auto& engine : engines_) engine->checkpoints().Abort(id_);
  saved_ = before;
  id_ = id;
  return saved;
}

// ---- restores -----------------------------------------------------------------------------------

void CheckpointRig::Load(const Saved& saved, ElementType dtype, uint64_t version, bool state) {
  RestoreRequest begin;
  begin.table = plan.table;
  begin.version = version;
  if (!saved.slices.empty()) begin.applies = saved.slices.begin()->second.applies;
  const auto check = [&](const absl::Status& status) {
    if (!status.ok()) error = std::string(status.message());
  };
  for (const auto& engine : engines_) check(engine->restores().Begin(begin));
  for (const auto& [first, chunk] : saved.chunks) {
    for (uint32_t done = 0; done < chunk.count;) {
      const uint32_t n = 1 + Pick(chunk.count - done);
      const size_t bytes = ElementBytes(dtype);
      const std::vector<std::byte> parameters(
          chunk.parameters.begin() + static_cast<ptrdiff_t>(done * bytes),
          chunk.parameters.begin() + static_cast<ptrdiff_t>((done + n) * bytes));
      ElementsToRestore elements;
      elements.table = plan.table;
      elements.first_element = first + done;
      elements.count = n;
      elements.dtype = dtype;
      elements.parameters = parameters;
      if (!chunk.master.empty()) elements.master = absl::MakeSpan(chunk.master).subspan(done, n);
      for (const auto& array : chunk.state) {
        if (state) elements.state.push_back(absl::MakeSpan(array).subspan(done, n));
      }
      elements.applies = state ? chunk.applies : 0;
      for (const auto& engine : engines_) check(engine->restores().LoadElements(elements));
      done += n;
    }
  }
  for (auto it = saved.rows.begin(); it != saved.rows.end();) {
    std::vector<uint64_t> keys;
    std::vector<uint32_t> applies;
    std::vector<float> parameters;
    std::vector<std::vector<float>> arrays(it->second.state.size());
    for (uint32_t n = 1 + Pick(9); n > 0 && it != saved.rows.end(); --n, ++it) {
      const SavedRow& row = it->second;
      keys.push_back(it->first);
      applies.push_back(row.applies);
      parameters.insert(parameters.end(), row.parameters.begin(), row.parameters.end());
      for (size_t a = 0; a < arrays.size(); ++a) {
        arrays[a].insert(arrays[a].end(), row.state[a].begin(), row.state[a].end());
      }
    }
    RowsToRestore rows;
    rows.table = plan.table;
    rows.keys = keys;
    if (state) rows.row_applies = applies;
    rows.parameters = {reinterpret_cast<const std::byte*>(parameters.data()),
                       parameters.size() * sizeof(float)};
    for (const auto& array : arrays) {
      if (state) rows.state.emplace_back(array);
    }
    for (const auto& engine : engines_) {
      RowsLoaded at;
      absl::Status loaded = engine->restores().LoadRows(rows, &at);
      for (; plan.cold && absl::IsUnavailable(loaded);
           loaded = engine->restores().LoadRows(rows, &at)) {
        TakeEvents();  // rows that were loaded go to the cold store, or to copies
        if (plan.copies) Deliver();
      }
      check(loaded);
    }
  }
}

absl::Status CheckpointRig::FinishRestore() {
  absl::Status status;
  for (const auto& engine : engines_) status.Update(engine->restores().Finish(plan.table));
  return status;
}

void CheckpointRig::Serve() {
  view_.mutable_tables(0)->set_restoring(false);
  ApplyView();
}

}  // namespace verbena::shard
