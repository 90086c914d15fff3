#include "server/checkpoint/shard_restores.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/wire/row_applies.h"
#include "server/checkpoint/files/failpoints.h"
#include "server/checkpoint/files/manifest.h"
#include "server/nanoseconds.h"
#include "shard/checkpoint/restores.h"

namespace verbena::server {
namespace {

// Delay before replicas that lag behind are checked again: some milliseconds of records.
constexpr int64_t kRetryNanos = 5 * kNanosPerMilli;

absl::Span<const float> Floats(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float)};
}

}  // namespace

ShardRestores::ShardRestores(ShardCheckpointsOptions options, const Clock* clock, Inbox* inbox)
    : options_(std::move(options)), clock_(clock), inbox_(inbox) {}
ShardRestores::~ShardRestores() = default;

void ShardRestores::Io(Inbox::Closure closure) {
  if (options_.io) {
    options_.io(std::move(closure));
  } else {
    closure();
  }
}

std::map<uint32_t, uint64_t> ShardRestores::EpochsOfOurs(
    const ShardCheckpoints::World& world) const {
  std::map<uint32_t, uint64_t> epochs;
  for (const v1::Partition& partition : world.view->partitions()) {
    if (partition.primary() != world.incarnation || partition.shard() != options_.shard) continue;
    epochs[partition.id()] = partition.epoch();
  }
  return epochs;
}

absl::Status ShardRestores::Begin(const v1::BeginRestoreRequest& request,
                                  const ShardCheckpoints::World& world) {
  if (options_.disk == nullptr) return absl::UnimplementedError("this server restores nothing");
  if (restores_.contains(request.restore())) {
    return absl::AlreadyExistsError(absl::StrCat("restore ", request.restore(), " has begun here"));
  }
  if (request.path().empty() || request.path().front() != '/') {
    return absl::InvalidArgumentError(absl::StrCat("path '", request.path(),
                                                   "'; wanted: an absolute one, as servers may "
                                                   "have been started anywhere"));
  }
  Restore restore;
  restore.engine = world.engine;
  restore.source = std::make_shared<Source>();
  RestoreRead& read = restore.source->wanted;
  read.path = request.path();
  read.state = request.state();
  restore.state = request.state();
  restore.epochs = EpochsOfOurs(world);
  read.ours.resize(static_cast<size_t>(world.view->partitions_size()));
  for (const auto& [partition, epoch] : restore.epochs) read.ours[partition] = true;
  for (const v1::RestoreTable& table : request.tables()) {
    shard::RestoreRequest wanted{.table = table.table(), .applies = table.applies()};
    if (absl::Status status = restore.engine->restores().Begin(wanted); !status.ok()) return status;
    restore.tables.push_back(wanted);
    read.tables.push_back({.name = table.name(), .id = table.table()});
  }
  restore.patience_ns =
      std::max<int64_t>(kLeastPatienceNanos, int64_t{request.patience_ms()} * kNanosPerMilli);
  restore.gives_up_ns = clock_->NowNanos() + restore.patience_ns;
  restores_[request.restore()] = std::move(restore);
  return absl::OkStatus();
}

void ShardRestores::Follow(const ShardCheckpoints::World& world) {
  for (auto& [id, restore] : restores_) {
    if (!restore.status.ok() || restore.finished || restore.epochs == EpochsOfOurs(world)) continue;
    restore.status = absl::AbortedError("partitions have moved to or from this shard meanwhile");
    restore.windows.clear();
  }
}

// ---- windows ------------------------------------------------------------------------------------

void ShardRestores::Ask(uint64_t id, Restore* restore) {
  ++restore->asked;
  auto read = std::make_shared<Read>();
  if (!restore->spent.empty()) {
    read->window = std::move(restore->spent.back());
    restore->spent.pop_back();
  }
  Io([this, id, read, source = restore->source, disk = options_.disk, inbox = inbox_] {
    if (source->reader == nullptr) {
      auto opened = RestoreReader::Open(disk, source->wanted);
      if (opened.ok()) source->reader = *std::move(opened);
      read->status = opened.status();
    }
    if (read->status.ok()) {
      absl::StatusOr<bool> more = source->reader->Next(&read->window);
      read->status = more.status();
      read->end = more.ok() && !*more;
      read->read_bytes = source->reader->read_bytes();
      if (read->end) {
        read->groups = source->reader->groups();
        read->checked = source->reader->checked();
      }
    }
    inbox->Post([this, id, read] {
      const auto it = restores_.find(id);
      if (it == restores_.end()) return;
      --it->second.asked;
      it->second.windows.push_back(std::move(*read));
    });
  });
}

absl::Status ShardRestores::LoadWindow(const Restore& restore, Read* read) const {
  const RestoreWindow& window = read->window;
  const uint32_t table = restore.tables[window.table].table;
  const std::vector<std::vector<std::byte>>& columns = window.columns;
  if (window.rows) {
    shard::RowsToRestore rows;
    rows.table = table;
    rows.expected = window.of_table;
    rows.keys = {reinterpret_cast<const uint64_t*>(columns[0].data()), window.count};
    rows.parameters = columns[1];
    constexpr size_t kApplies = checkpoint::kAppliesColumn;
    rows.row_applies = {reinterpret_cast<const uint32_t*>(columns[kApplies].data()), window.count};
    std::vector<uint32_t> anew;
    if (!restore.state) {
      for (const uint32_t n : rows.row_applies) anew.push_back(n == 0 ? 0 : kAppliesOfNewState);
      rows.row_applies = anew;
    }
    for (size_t i = kApplies + 1; i < columns.size(); ++i) {
      rows.state.push_back(Floats(columns[i]));
    }
    return restore.engine->restores().LoadRows(rows, &read->loaded);
  }
  shard::ElementsToRestore elements;
  elements.table = table;
  elements.first_element = window.first;
  elements.count = window.count;
  elements.dtype = window.dtype;
  elements.parameters = columns[0];
  elements.applies = window.applies;
  size_t next = 1;
  if (window.master) elements.master = Floats(columns[next++]);
  for (; next < columns.size(); ++next) elements.state.push_back(Floats(columns[next]));
  return restore.engine->restores().LoadElements(elements);
}

void ShardRestores::AtEnd(Restore* restore, Read* read) {
  restore->read_all = true;
  restore->groups = read->groups;
  restore->checked = std::move(read->checked);
}

bool ShardRestores::Load(Restore* restore, int64_t now) {
  bool worked = false;
  while (!restore->windows.empty() && restore->status.ok() && restore->retry_ns <= now) {
    worked = true;
    Read& read = restore->windows.front();
    restore->read_bytes = std::max(restore->read_bytes, read.read_bytes);
    absl::Status status = read.status;
    // Windows that were requested beyond the end are reported as ends, too.
    if (status.ok() && read.end) AtEnd(restore, &read);
    const bool loads = status.ok() && !read.end;
    if (loads) status = LoadWindow(*restore, &read);
    // The window is loaded again later; one that could not be read cannot be loaded.
    if (absl::IsUnavailable(status) && (loads || VERBENA_FAILPOINT(checkpoint, reload_unread))) {
      restore->retry_ns = now + kRetryNanos;
      break;
    }
    restore->status = status;
    if (!read.end) restore->spent.push_back(std::move(read.window));
    restore->windows.pop_front();
  }
  if (!restore->status.ok()) restore->windows.clear();
  return worked;
}

bool ShardRestores::Finish(Restore* restore, int64_t now) {
  if (!restore->read_all || !restore->windows.empty() || restore->finished ||
      !restore->status.ok() || restore->retry_ns > now) {
    return false;
  }
  bool complete = true;
  for (const shard::RestoreRequest& table : restore->tables) {
    absl::Status status = restore->engine->restores().Finish(table.table);
    absl::StatusOr<shard::RestoreProgress> progress =
        restore->engine->restores().progress(table.table);
    if (status.ok()) status = progress.status();
    if (status.ok() && progress->complete()) continue;
    complete = false;
    if (!status.ok() && !absl::IsUnavailable(status)) {
      restore->status = status;
      return true;
    }
  }
  restore->finished = complete;
  if (!complete) restore->retry_ns = now + kRetryNanos;
  return true;
}

// ---- restorer calls ----------------------------------------------------------------------------

void ShardRestores::Wait(const v1::WaitRestoreRequest& request, Reply reply) {
  const auto it = restores_.find(request.restore());
  if (it == restores_.end()) {
    return reply(absl::NotFoundError(
        absl::StrCat("no restore ", request.restore(), " is in progress here")));
  }
  Restore& restore = it->second;
  const int64_t due = clock_->NowNanos() + int64_t{request.wait_ms()} * kNanosPerMilli;
  restore.gives_up_ns = std::max(restore.gives_up_ns, due + restore.patience_ns);
  restore.waiters.push_back({due, std::move(reply)});
}

bool ShardRestores::AnswerWaiters(Restore* restore, int64_t now) {
  const bool over = !restore->status.ok() || restore->finished;
  std::vector<Waiter> due;
  for (size_t i = 0; i < restore->waiters.size();) {
    if (!over && restore->waiters[i].due_ns > now) {
      ++i;
      continue;
    }
    due.push_back(std::move(restore->waiters[i]));
    restore->waiters.erase(restore->waiters.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (Waiter& waiter : due) {
    if (!restore->status.ok()) {
      waiter.reply(restore->status);
      continue;
    }
    v1::WaitRestoreResponse response;
    response.set_done(restore->finished);
    response.set_read_bytes(restore->read_bytes);
    response.set_groups(restore->groups);
    if (restore->finished) {
      response.mutable_checked()->Assign(restore->checked.begin(), restore->checked.end());
      for (const auto& [partition, epoch] : restore->epochs) response.add_partitions(partition);
    }
    waiter.reply(std::move(response));
  }
  return !due.empty();
}

bool ShardRestores::RunOnce() {
  if (restores_.empty()) return false;
  bool worked = false;
  const int64_t now = clock_->NowNanos();
  for (auto it = restores_.begin(); it != restores_.end();) {
    Restore& restore = it->second;
    worked |= Load(&restore, now);
    const bool reads = restore.status.ok() && !restore.read_all;
    while (reads && restore.asked + restore.windows.size() < kWindows) {
      Ask(it->first, &restore);
      worked = true;
    }
    worked |= Finish(&restore, now);
    worked |= AnswerWaiters(&restore, now);
    // Kept until its reads have come back, and as long as its result is requested.
    const bool over = restore.gives_up_ns <= now && restore.asked == 0 && restore.waiters.empty();
    it = over ? restores_.erase(it) : std::next(it);
  }
  return worked;
}

int64_t ShardRestores::NextTimerNanos() const {
  int64_t next = kNever;
  for (const auto& [id, restore] : restores_) {
    if (restore.asked == 0) next = std::min(next, restore.gives_up_ns);
    const bool retries =
        restore.status.ok() && !restore.finished && (restore.read_all || !restore.windows.empty());
    if (retries) next = std::min(next, restore.retry_ns);
    for (const Waiter& waiter : restore.waiters) next = std::min(next, waiter.due_ns);
  }
  return next;
}

}  // namespace verbena::server
