#include "tests/shard/save_rig.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "proto/half.h"

namespace verbena::shard {

SavePlan MakeSavePlan(uint32_t seed, bool rows, v1::Consistency consistency) {
  std::mt19937 random(seed * 31 + (rows ? 7 : 0) + static_cast<uint32_t>(consistency));
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  SavePlan plan;
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
  }
  plan.reduction = pick(2) == 0 ? v1::REDUCTION_MEAN : v1::REDUCTION_SUM;
  plan.workers = 1 + pick(3);
  plan.servers = 1 + pick(3);
  plan.partitions = plan.servers + pick(4);
  plan.elements = 20 + pick(100);
  plan.spares = pick(3);
  return plan;
}

SaveRig::SaveRig(const SavePlan& p) : plan(p), random_(p.seed) {
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
  v1::TableSpec* spec = table->mutable_spec();
  spec->set_name("table");
  spec->set_job("job");
  if (plan.rows) {
    spec->set_dim(plan.dim);
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
  for (uint32_t s = 0; s < plan.servers; ++s) {
    EngineOptions options;
    options.server = kServer + s;
    options.spare_buffers = plan.spares;
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

void SaveRig::ApplyView() {
  view_.set_revision(view_.revision() + 1);
  for (const auto& engine : engines_) {
    const absl::Status applied = engine->ApplyView(view_);
    if (!applied.ok()) error = std::string(applied.message());
  }
}

// ---- workers ------------------------------------------------------------------------------------

std::vector<float> SaveRig::GradientOf(uint32_t rank, uint64_t first, uint64_t step,
                                       size_t n) const {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    std::minstd_rand random(static_cast<uint32_t>((first + i) * 131 + rank * 7919 + step * 17 + 1));
    random();
    values[i] = static_cast<float>(static_cast<int>(random() % 201) - 100) / 16;
  }
  return values;
}

std::vector<uint64_t> SaveRig::KeysOf(uint32_t rank, uint32_t partition, uint64_t step) const {
  std::vector<uint64_t> keys;
  for (uint64_t key = 0; key < plan.keys; ++key) {
    std::minstd_rand random(static_cast<uint32_t>(key * 331 + rank * 17 + step * 7 + 3));
    random();
    // Some are pushed often, some not before late.
    if (random() % (key % 3 == 0 ? 2 : 9) != 0) continue;
    if (PartitionOfKey(plan.table, key, plan.partitions) == partition) keys.push_back(key);
  }
  return keys;
}

Group SaveRig::GroupOf(uint32_t partition, uint64_t sequence) const {
  return {partition, 0, view_.partitions(static_cast<int>(partition)).epoch(), sequence, 0, 0};
}

bool SaveRig::Ended(const Stream& stream) const {
  const auto limit = limits_.find({kFirstWorker + stream.rank, stream.item});
  if (limit != limits_.end()) return stream.position >= limit->second;
  return stream.position >= goal_ * (sync() && plan.rows ? 2 : 1);
}

bool SaveRig::Done() const {
  return std::all_of(streams_.begin(), streams_.end(),
                     [&](const Stream& s) { return Ended(s) && !s.out; });
}

ReplyStatus SaveRig::TryDense(Stream* s, bool* later) {
  const DenseLayout layout = LayoutOf(view_.tables(0).spec());
  uint32_t chunk = s->item;
  uint64_t sequence = s->position;
  if (!sync()) {
    std::vector<uint32_t> here;
    for (uint32_t c = 0; c < layout.chunks(); ++c) {
      if (PartitionOfChunk(plan.table, c, plan.partitions) == s->item) here.push_back(c);
    }
    if (here.empty()) return ReplyStatus::kOk;
    chunk = here[s->position % here.size()];
    sequence = s->position + 1;
  }
  const uint32_t partition = PartitionOfChunk(plan.table, chunk, plan.partitions);
  const std::vector<float> values =
      GradientOf(s->rank, layout.first_element(chunk), s->position, layout.elements_of(chunk));
  std::vector<std::byte>& payload = payloads_.emplace_back(values.size() * 4);
  if (plan.gradient_dtype == v1::DTYPE_F32) {
    std::memcpy(payload.data(), values.data(), payload.size());
  } else {
    payload.resize(values.size() * 2);
    BFloat16sFromFloats(values.data(), reinterpret_cast<uint16_t*>(payload.data()), values.size());
  }
  PushRequest r;
  r.token = {s->rank, static_cast<uint32_t>(s - streams_.data()), 0};
  r.worker = kFirstWorker + s->rank;
  r.table = plan.table;
  r.group = GroupOf(partition, sequence);
  r.group.index = chunk;
  r.group.count = layout.elements_of(chunk);
  r.dtype = static_cast<ElementType>(plan.gradient_dtype);
  r.payload = payload;
  const PushOutcome out = EngineOf(partition).Push(r);
  *later = out.held || out.deferred;
  if (!out.held) payloads_.pop_back();
  return out.answer.status;
}

ReplyStatus SaveRig::TryRows(Stream* s, bool* later) {
  const uint32_t partition = s->item;
  const uint64_t step = sync() ? s->position / 2 : s->position;
  const std::vector<uint64_t> keys = KeysOf(s->rank, partition, step);
  Group group = GroupOf(partition, sync() ? step : s->position + 1);
  GroupsOutcome out;
  if (sync() && s->position % 2 == 1) {
    group.count = keys.empty() ? 0 : 1;
    out = EngineOf(partition).EndStep(
        {{s->rank, 0, 0}, kFirstWorker + s->rank, plan.table, {&group, 1}});
  } else if (sync() && keys.empty()) {
    return ReplyStatus::kOk;
  } else {
    group.count = static_cast<uint32_t>(keys.size());
    std::vector<float> values;
    for (const uint64_t key : keys) {
      const std::vector<float> row = GradientOf(s->rank, key * 64, step, plan.dim);
      values.insert(values.end(), row.begin(), row.end());
    }
    out = EngineOf(partition).PushRows(
        {{s->rank, static_cast<uint32_t>(s - streams_.data()), 0},
         kFirstWorker + s->rank,
         plan.table,
         {&group, 1},
         keys,
         {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)}});
  }
  *later = out.deferred;
  return out.group_status[0];
}

void SaveRig::Try(Stream* s) {
  if (s->out || Ended(*s)) return;
  bool later = false;
  const ReplyStatus status = plan.rows ? TryRows(s, &later) : TryDense(s, &later);
  if (later) {
    s->out = true;
  } else if (status == ReplyStatus::kOk || status == ReplyStatus::kDuplicate) {
    ++s->position;
    if (!sync()) acknowledged_[{kFirstWorker + s->rank, s->item}] = s->position;
  } else if (status != ReplyStatus::kWrongStep && status != ReplyStatus::kResourceExhausted) {
    error = "a push is answered " + std::string(ReplyStatusName(status));
  }
}

void SaveRig::TakeEvents() {
  std::vector<Event> events;
  for (const auto& engine : engines_) engine->TakeEvents(&events);
  for (const Event& event : events) {
    if (event.kind != Event::Kind::kPushDone && event.kind != Event::Kind::kReplicated) continue;
    Stream& s = streams_[event.token.operation];
    s.out = false;
    if (event.answer.status != ReplyStatus::kOk) continue;
    ++s.position;
    if (!sync()) acknowledged_[{kFirstWorker + s.rank, s.item}] = s.position;
  }
}

// One record, or its answer, arrives.
void SaveRig::Deliver() {
  std::vector<ReplicaRecord> records;
  for (size_t e = 0; e < engines_.size(); ++e) {
    records.clear();
    engines_[e]->TakeReplicas(&records, 4);
    links_[e].insert(links_[e].end(), records.begin(), records.end());
  }
  std::deque<ReplicaRecord>& link = links_[Pick(static_cast<uint32_t>(engines_.size()))];
  if (link.empty()) return;
  const ReplicaRecord r = link.front();
  link.pop_front();
  const CopyId from = {kServer + r.group.partition % engines_.size(), 0};
  std::vector<uint64_t> payload((sizeof(r.header) + r.header.total_bytes + 7) / 8);
  std::memcpy(payload.data(), &r.header, sizeof(r.header));
  if (r.header.total_bytes > 0) {
    std::memcpy(payload.data() + sizeof(r.header) / 8, r.data.data, r.header.total_bytes);
  }
  Record record = {};
  record.header.table = r.table;
  record.header.group_count = 1;
  record.groups[0] = r.group;
  const Answer answer = engines_[r.to.server - kServer]->Replicate(
      from, record,
      {reinterpret_cast<const std::byte*>(payload.data()),
       sizeof(r.header) + r.header.total_bytes});
  if (answer.status != ReplyStatus::kOk) {
    error = "a copy answers " + std::string(ReplyStatusName(answer.status));
  }
  engines_[from.server - kServer]->ReplicaAnswered(r.to, r.group.partition, r.group.sequence,
                                                   answer.status);
}

void SaveRig::DeliverAll() {
  for (int i = 0; i < 3000; ++i) Deliver();
  TakeEvents();
}

// Both phases of a step, where all chunks are in one.
void SaveRig::ActNorms() {
  const bool clip = plan.optimizer.clip_global_norm() > 0;
  const bool trust = plan.optimizer.name() == "lamb";
  for (const NormKind kind : {NormKind::kGradient, NormKind::kTrust}) {
    if (kind == NormKind::kGradient ? !clip : !trust) continue;
    for (uint64_t step = Newest() == 0 ? 0 : Newest() - 1; step <= Newest(); ++step) {
      std::vector<std::vector<Group>> groups(engines_.size());
      std::set<uint32_t> partitions;
      for (uint32_t c = 0; c < chunks(); ++c) {
        const uint32_t p = PartitionOfChunk(plan.table, c, plan.partitions);
        if (!partitions.insert(p).second) continue;
        groups[p % engines_.size()].push_back(GroupOf(p, step));
        groups[p % engines_.size()].back().index = static_cast<uint32_t>(kind);
      }
      NormTotals totals = {};
      std::map<uint32_t, std::vector<double>>
          parts;  // in the order of partitions, wherever they are
      bool all = true;
      for (size_t e = 0; e < engines_.size() && all; ++e) {
        for (const Group& group : groups[e]) {
          const PullOutcome out = engines_[e]->Norms(
              {{0, 9, 0}, kFirstWorker, plan.table, {&group, 1}, 0, 0, /*may_park=*/false});
          all = all && out.kind == PullOutcome::Kind::kReady;
          if (out.kind != PullOutcome::Kind::kReady) break;
          std::vector<double>& numbers = parts[group.partition];
          numbers.resize(out.view.bytes / sizeof(double));
          std::memcpy(numbers.data(), out.view.buffer.data, out.view.bytes);
          engines_[e]->Unpin(out.view.pin);
        }
      }
      if (!all) continue;
      // By chunk, as clients do.
      std::map<uint32_t, size_t> next;
      for (uint32_t c = 0; c < chunks(); ++c) {
        const uint32_t p = PartitionOfChunk(plan.table, c, plan.partitions);
        for (uint32_t i = 0; i < NormNumbers(kind); ++i) totals[i] += parts[p][next[p]++];
      }
      for (size_t e = 0; e < engines_.size(); ++e) {
        if (groups[e].empty()) continue;
        engines_[e]->Totals({{0, 8, 0}, kFirstWorker, plan.table, groups[e], 0}, totals);
      }
    }
  }
}

// A chunk is written out to a worker for a while.
void SaveRig::ActPins() {
  if (!pins_.empty() && Pick(2) == 0) {
    std::swap(pins_[Pick(static_cast<uint32_t>(pins_.size()))], pins_.back());
    engines_[pins_.back().first]->Unpin(pins_.back().second);
    pins_.pop_back();
  } else if (pins_.size() < 4) {
    const uint32_t chunk = Pick(chunks());
    const uint32_t p = PartitionOfChunk(plan.table, chunk, plan.partitions);
    PullRequest r;
    r.worker = kFirstWorker;
    r.table = plan.table;
    r.group = GroupOf(p, 0);
    r.group.index = chunk;
    r.dtype = static_cast<ElementType>(plan.dtype);
    r.may_park = false;
    const PullOutcome out = EngineOf(p).Pull(r);
    if (out.kind == PullOutcome::Kind::kReady)
      pins_.emplace_back(p % engines_.size(), out.view.pin);
  }
}

void SaveRig::Act() {
  Try(&streams_[Pick(static_cast<uint32_t>(streams_.size()))]);
  if (!plan.rows && Pick(4) == 0) ActPins();
  if (!plan.rows && sync() && Pick(4) == 0) ActNorms();
  if (plan.copies && Pick(2 + plan.seed % 3 * 6) == 0) Deliver();
  TakeEvents();
}

void SaveRig::UnpinAll() {
  for (const auto& [engine, pin] : pins_) engines_[engine]->Unpin(pin);
  pins_.clear();
  TakeEvents();
}

bool SaveRig::Finish() {
  for (uint32_t i = 0; i < 200000 && error.empty(); ++i) {
    if (Done()) break;
    Act();
  }
  UnpinAll();
  if (!plan.rows && sync()) {
    for (int i = 0; i < 4; ++i) ActNorms();
  }
  if (plan.copies) DeliverAll();
  return Done() && error.empty();
}

uint64_t SaveRig::Newest() {
  uint64_t newest = 0;
  for (uint32_t c = 0; !plan.rows && c < chunks(); ++c) {
    const uint32_t p = PartitionOfChunk(plan.table, c, plan.partitions);
    PullRequest r;
    r.worker = kFirstWorker;
    r.table = plan.table;
    r.group = GroupOf(p, 0);
    r.group.index = c;
    r.dtype = static_cast<ElementType>(plan.dtype);
    const PullOutcome out = EngineOf(p).Pull(r);
    newest = std::max(newest, out.view.version);
    EngineOf(p).Unpin(out.view.pin);
  }
  for (uint32_t p = 0; plan.rows && p < plan.partitions; ++p) {
    Group group = GroupOf(p, 0);
    group.count = 1;
    const PullOutcome out = EngineOf(p).Scan({kFirstWorker, plan.table, group});
    newest = std::max(newest, out.view.version);
    EngineOf(p).Unpin(out.view.pin);
  }
  return newest;
}

// ---- saves --------------------------------------------------------------------------------------

absl::Status SaveRig::Begin(SaveRequest request, uint64_t* newest) {
  request.id = id_ = ++last_id_;
  saved_ = {};
  *newest = 0;
  absl::Status status;
  for (const auto& engine : engines_) {
    uint64_t here = 0;
    status.Update(engine->BeginSave(request, &here));
    *newest = std::max(*newest, here);
  }
  if (!status.ok()) {
    for (const auto& engine : engines_) engine->AbortSave(id_);
  }
  return status;
}

absl::Status SaveRig::Begin(uint64_t step, uint64_t memory_bytes) {
  SaveRequest request;
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

void SaveRig::Collect(const SavePiece& piece, Saved* saved) {
  const auto array = [](absl::Span<const float> from, size_t first, size_t n) {
    return std::vector<float>(from.begin() + static_cast<ptrdiff_t>(first),
                              from.begin() + static_cast<ptrdiff_t>(first + n));
  };
  if (piece.table != plan.table || piece.epoch != GroupOf(piece.partition, 0).epoch) {
    error = "a piece is of something else";
  }
  if (piece.kind == SavePiece::Kind::kSlice) {
    SavedSlice& slice = saved->slices[piece.partition];
    slice.version = piece.version;
    slice.applies = piece.applies;
    for (const SavedPrefix& p : piece.prefix) slice.prefix[p.worker] = p.sequence;
    saved->incremental += piece.incremental ? 1 : 0;
  } else if (piece.kind == SavePiece::Kind::kChunk) {
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

void SaveRig::ActSave() {
  const size_t e = Pick(static_cast<uint32_t>(engines_.size()));
  const absl::StatusOr<SaveProgress> progress = engines_[e]->save_progress(id_);
  if (progress.ok()) {
    most_memory = std::max(most_memory, progress->memory_bytes);
  }
  if (!out_.empty() && Pick(3) != 0) {
    std::swap(out_[Pick(static_cast<uint32_t>(out_.size()))], out_.back());
    const OutPiece out = out_.back();
    out_.pop_back();
    // Only now: until here nothing of it may change.
    Collect(out.piece, &saved_);
    engines_[out.engine]->ReleasePiece(id_, out.piece.id);
    return;
  }
  SavePiece piece;
  if (out_.size() < 6 && engines_[e]->TakePiece(id_, &piece)) out_.push_back({e, piece});
}

void SaveRig::ReleaseAll() {
  for (const OutPiece& out : out_) engines_[out.engine]->ReleasePiece(id_, out.piece.id);
  out_.clear();
}

std::vector<SavePiece> SaveRig::Out() const {
  std::vector<SavePiece> pieces;
  for (const OutPiece& out : out_) pieces.push_back(out.piece);
  return pieces;
}

bool SaveRig::SaveComplete() {
  return out_.empty() && std::all_of(engines_.begin(), engines_.end(), [&](const auto& engine) {
           const absl::StatusOr<SaveProgress> progress = engine->save_progress(id_);
           return progress.ok() && progress->complete();
         });
}

bool SaveRig::FinishSave() {
  const uint32_t pace = 2 + Pick(8);  // workers may be far quicker than the disk
  for (uint32_t i = 0; i < 400000 && error.empty(); ++i) {
    if (Done() && SaveComplete()) break;
    if (Pick(pace) == 0) {
      ActSave();
    } else {
      Act();
    }
  }
  return Finish() && SaveComplete();
}

Saved SaveRig::SaveIdle() {
  UnpinAll();  // what waits for that goes on
  const Saved before = saved_;
  SaveRequest request;
  uint64_t newest = 0;
  request.tables.push_back({plan.table, sync() ? Newest() : 0, 0, false});
  request.piece_bytes = 100000;
  const uint64_t id = id_;
  for (const auto& engine : engines_) engine->CommitSave(id_);
  absl::Status begun = Begin(request, &newest);
  if (begun.code() == absl::StatusCode::kOutOfRange) {
    request.tables[0].step = newest;
    begun = Begin(request, &newest);
  }
  if (!begun.ok()) error = std::string(begun.message());
  Saved saved;
  for (const auto& engine : engines_) {
    SavePiece piece;
    while (engine->TakePiece(id_, &piece)) {
      Collect(piece, &saved);
      engine->ReleasePiece(id_, piece.id);
    }
  }
  if (!SaveComplete()) error = "an idle save does not end";
  for (const auto& engine : engines_) engine->AbortSave(id_);
  saved_ = before;
  id_ = id;
  return saved;
}

// ---- restores -----------------------------------------------------------------------------------

void SaveRig::Load(const Saved& saved, ElementType dtype, uint64_t version, bool state) {
  RestoreRequest begin;
  begin.table = plan.table;
  begin.version = version;
  if (!saved.slices.empty()) begin.applies = saved.slices.begin()->second.applies;
  const auto check = [&](const absl::Status& status) {
    if (!status.ok()) error = std::string(status.message());
  };
  for (const auto& engine : engines_) check(engine->BeginRestore(begin));
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
      for (const auto& engine : engines_) check(engine->RestoreElements(elements));
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
    for (const auto& engine : engines_) check(engine->RestoreRows(rows));
  }
}

absl::Status SaveRig::FinishRestore() {
  absl::Status status;
  for (const auto& engine : engines_) status.Update(engine->FinishRestore(plan.table));
  return status;
}

void SaveRig::Serve() {
  view_.mutable_tables(0)->set_restoring(false);
  ApplyView();
}

}  // namespace verbena::shard
