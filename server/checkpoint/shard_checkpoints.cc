#include "server/checkpoint/shard_checkpoints.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/control/view_tables.h"
#include "proto/spec/table_spec.h"
#include "proto/wire/routing.h"
#include "server/nanoseconds.h"
#include "shard/checkpoint/checkpoints.h"

namespace verbena::server {
ShardCheckpoints::ShardCheckpoints(ShardCheckpointsOptions options, const Clock* clock,
                                   Inbox* inbox)
    : options_(std::move(options)), clock_(clock), inbox_(inbox) {}
ShardCheckpoints::~ShardCheckpoints() = default;

void ShardCheckpoints::Io(Inbox::Closure closure) {
  if (options_.io) {
    options_.io(std::move(closure));
  } else {
    closure();
  }
}

// ---- beginning ----------------------------------------------------------------------------------

absl::StatusOr<std::vector<ShardWriter::Table>> ShardCheckpoints::TablesOf(
    const v1::BeginCheckpointRequest& request, const World& world) const {
  const v1::ClusterView& view = *world.view;
  const auto partitions = static_cast<uint32_t>(view.partitions_size());
  std::vector<ShardWriter::Table> tables;
  for (const v1::TableToCheckpoint& wanted : request.tables()) {
    const v1::Table* known = FindTableById(wanted.table(), view);
    if (known == nullptr) {
      return absl::NotFoundError(absl::StrCat("table ", wanted.table(), " is not known here"));
    }
    ShardWriter::Table& table = tables.emplace_back();
    table.id = wanted.table();
    table.position = wanted.position();
    table.spec = known->spec();
    if (table.spec.dim() > 0) continue;
    const DenseLayout layout = LayoutOf(table.spec);
    for (uint32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
      const v1::Partition& partition =
          view.partitions(static_cast<int>(PartitionOfChunk(table.id, chunk, partitions)));
      if (partition.primary() == world.incarnation && partition.shard() == options_.shard) {
        table.chunks.push_back(chunk);
      }
    }
  }
  return tables;
}

absl::StatusOr<v1::BeginCheckpointResponse> ShardCheckpoints::Begin(
    const v1::BeginCheckpointRequest& request, const World& world) {
  if (options_.disk == nullptr) return absl::UnimplementedError("this server saves nothing");
  if (saves_.contains(request.checkpoint())) {
    return absl::AlreadyExistsError(absl::StrCat("save ", request.checkpoint(), " has begun here"));
  }
  if (!request.only_look() && (request.directory().empty() || request.directory().front() != '/')) {
    return absl::InvalidArgumentError(absl::StrCat("directory '", request.directory(),
                                                   "'; wanted: an absolute path, as servers may "
                                                   "have been started anywhere"));
  }
  auto tables = TablesOf(request, world);
  if (!tables.ok()) return tables.status();
  shard::PartitionCheckpointRequest wanted;
  wanted.id = request.checkpoint();
  for (const v1::TableToCheckpoint& table : request.tables()) {
    wanted.tables.push_back({table.table(), table.step(), table.base(), table.track()});
  }
  if (request.memory_bytes() > 0) wanted.memory_bytes = request.memory_bytes();
  wanted.piece_bytes = kPieceBytes;
  v1::BeginCheckpointResponse response;
  std::vector<uint64_t> newest;
  const absl::Status begun = world.engine->checkpoints().Begin(wanted, &newest);
  for (const uint64_t step : newest) response.add_newest(step);
  for (const v1::TableToCheckpoint& table : request.tables()) {
    response.add_open(world.engine->checkpoints().HasOpenStep(table.table()));
  }
  if (absl::IsOutOfRange(begun)) {
    response.set_too_late(true);
    return response;
  }
  if (absl::IsFailedPrecondition(begun)) return WithCheckpoints(begun);
  if (!begun.ok()) return begun;
  if (request.only_look()) {
    world.engine->checkpoints().Abort(request.checkpoint());
    return response;
  }

  ShardWriterOptions writer{.directory = request.directory(),
                            .writer = request.writer(),
                            .only_writer = request.only_writer()};
  if (request.file_bytes() > 0) writer.file_bytes = request.file_bytes();
  Save& save = saves_[request.checkpoint()];
  save.id = request.checkpoint();
  save.engine = world.engine;
  save.writer = std::make_shared<ShardWriter>(options_.disk, std::move(writer), *std::move(tables));
  save.bytes_per_second = request.bytes_per_second();
  save.patience_ns =
      std::max<int64_t>(kLeastPatienceNanos, int64_t{request.patience_ms()} * kNanosPerMilli);
  save.gives_up_ns = clock_->NowNanos() + save.patience_ns;
  save.next_piece_ns = clock_->NowNanos();
  // An error here is reported with the first piece.
  Io([writer = save.writer] { (void)writer->Open(); });
  return response;
}

// A caller that died has left its save here: the error states for how long it stays.
absl::Status ShardCheckpoints::WithCheckpoints(const absl::Status& status) const {
  std::string text(status.message());
  const int64_t now = clock_->NowNanos();
  for (const auto& [id, save] : saves_) {
    if (save.ended) continue;
    absl::StrAppend(&text, "; save ", id, " has taken ", save.taken_bytes,
                    " bytes here, and is given up in ",
                    std::max<int64_t>(0, save.gives_up_ns - now) / kNanosPerMilli,
                    " ms unless its caller asks about it");
  }
  return absl::FailedPreconditionError(text);
}

// ---- pieces -------------------------------------------------------------------------------------

bool ShardCheckpoints::TakePieces(Save* save, int64_t now) {
  bool worked = false;
  shard::CheckpointPiece piece;
  while (save->out < kPiecesOut && save->next_piece_ns <= now &&
         save->engine->checkpoints().Take(save->id, &piece)) {
    worked = true;
    ++save->out;
    save->taken_bytes += piece.bytes();
    if (save->bytes_per_second > 0) {
      // Unused rate does not accumulate: no burst follows a pause.
      const auto nanos = static_cast<int64_t>(static_cast<double>(piece.bytes()) * 1e9 /
                                              static_cast<double>(save->bytes_per_second));
      save->next_piece_ns = std::max(save->next_piece_ns + nanos, now + nanos / 2);
    }
    WritePiece(save, piece);
  }
  return worked;
}

void ShardCheckpoints::WritePiece(Save* save, const shard::CheckpointPiece& piece) {
  Io([this, id = save->id, writer = save->writer, inbox = inbox_, piece] {
    absl::Status status = writer->Write(piece);
    inbox->Post(
        [this, id, piece = piece.id, status = std::move(status)] { Written(id, piece, status); });
  });
}

void ShardCheckpoints::Written(uint64_t id, uint64_t piece, const absl::Status& status) {
  // Kept as long as a piece is out.
  Save& save = saves_.at(id);
  save.engine->checkpoints().Release(id, piece);
  --save.out;
  if (!status.ok()) Fail(&save, status);
}

void ShardCheckpoints::Fail(Save* save, absl::Status status) {
  if (!save->status.ok() || save->result.done()) return;
  Log(absl::StrCat("save ", save->id, " failed: ", status.message()));
  save->status = std::move(status);
  save->engine->checkpoints().Abort(save->id);
}

// Also after it is written: until this call the engine keeps the checkpoint, and begins no other of
// its tables.
void ShardCheckpoints::GiveUp(Save* save, absl::Status status) {
  if (save->ended) return;
  if (save->result.done()) save->engine->checkpoints().Abort(save->id);
  Fail(save, std::move(status));
  save->ended = true;
}

bool ShardCheckpoints::Advance(Save* save) {
  if (!save->status.ok() || save->finishing) return false;
  const absl::StatusOr<shard::CheckpointProgress> progress =
      save->engine->checkpoints().progress(save->id);
  if (!progress.ok() || !progress->status.ok()) {
    // A table that was dropped, a partition that moved: another try may do better.
    const absl::Status why = progress.ok() ? progress->status : progress.status();
    Fail(save, absl::AbortedError(why.message()));
    return true;
  }
  save->waiting = progress->waiting;
  if (!progress->complete()) return false;
  save->finishing = true;
  Io([this, id = save->id, writer = save->writer, inbox = inbox_] {
    auto result = std::make_shared<absl::StatusOr<v1::WaitCheckpointResponse>>(writer->Finish());
    inbox->Post([this, id, result] { Finished(id, std::move(*result)); });
  });
  return true;
}

void ShardCheckpoints::Finished(uint64_t id, absl::StatusOr<v1::WaitCheckpointResponse> result) {
  const auto it = saves_.find(id);
  if (it == saves_.end() || !it->second.status.ok()) return;
  if (!result.ok()) return Fail(&it->second, result.status());
  it->second.result = *std::move(result);
}

// ---- the caller's requests ----------------------------------------------------------------------

void ShardCheckpoints::Wait(const v1::WaitCheckpointRequest& request, Reply reply) {
  const auto it = saves_.find(request.checkpoint());
  if (it == saves_.end() || it->second.ended) {
    return reply(absl::NotFoundError(
        absl::StrCat("no save ", request.checkpoint(), " is in progress here")));
  }
  Save& save = it->second;
  const int64_t now = clock_->NowNanos();
  const int64_t due = now + int64_t{request.wait_ms()} * kNanosPerMilli;
  // From when it is answered on, it has that long to ask again.
  save.gives_up_ns = std::max(save.gives_up_ns, due + save.patience_ns);
  save.waiters.push_back({due, std::move(reply)});
  (void)AnswerWaiters(&save, now);
}

bool ShardCheckpoints::AnswerWaiters(Save* save, int64_t now) {
  if (save->waiters.empty()) return false;
  const bool over = !save->status.ok() || save->result.done();
  std::vector<Waiter> due;
  for (size_t i = 0; i < save->waiters.size();) {
    if (!over && save->waiters[i].due_ns > now) {
      ++i;
      continue;
    }
    due.push_back(std::move(save->waiters[i]));
    save->waiters.erase(save->waiters.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (Waiter& waiter : due) {
    if (!save->status.ok()) {
      waiter.reply(save->status);
      continue;
    }
    v1::WaitCheckpointResponse response = save->result;
    response.set_written_bytes(save->taken_bytes);
    response.set_waiting(save->waiting);
    waiter.reply(std::move(response));
  }
  return !due.empty();
}

absl::Status ShardCheckpoints::End(const v1::EndCheckpointRequest& request) {
  const auto it = saves_.find(request.checkpoint());
  if (it == saves_.end()) return absl::OkStatus();
  Save& save = it->second;
  if (request.committed() && save.result.done()) {
    save.engine->checkpoints().Commit(save.id);
    save.ended = true;
  } else {
    GiveUp(&save, absl::CancelledError("its caller gave it up"));
  }
  return absl::OkStatus();
}

// ---- time ---------------------------------------------------------------------------------------

bool ShardCheckpoints::RunOnce() {
  if (saves_.empty()) return false;
  bool worked = false;
  const int64_t now = clock_->NowNanos();
  looked_ns_ = now;
  for (auto it = saves_.begin(); it != saves_.end();) {
    Save& save = it->second;
    if (save.gives_up_ns <= now && !save.ended) {
      GiveUp(&save, absl::DeadlineExceededError("its caller has stopped asking about it"));
    }
    if (save.status.ok() && !save.finishing) worked |= TakePieces(&save, now);
    worked |= Advance(&save);
    worked |= AnswerWaiters(&save, now);
    if (save.ended && save.out == 0 && save.waiters.empty()) {
      it = saves_.erase(it);
      worked = true;
    } else {
      ++it;
    }
  }
  return worked;
}

int64_t ShardCheckpoints::NextTimerNanos() const {
  int64_t next = kNever;
  for (const auto& [id, save] : saves_) {
    if (!save.ended) next = std::min(next, save.gives_up_ns);
    // One that may be taken already comes with an event.
    const bool paced = save.next_piece_ns > looked_ns_ && save.out < kPiecesOut;
    if (paced && save.status.ok() && !save.finishing) next = std::min(next, save.next_piece_ns);
    for (const Waiter& waiter : save.waiters) next = std::min(next, waiter.due_ns);
  }
  return next;
}

}  // namespace verbena::server
