#include "tests/cluster/swarm_saved.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/spec/table_spec.h"
#include "proto/wire/routing.h"
#include "server/checkpoint/files/manifest.h"

namespace verbena::test {
namespace {

using checkpoint::CheckpointNumber;
using checkpoint::CheckpointReader;
using checkpoint::Join;
using checkpoint::Listed;

// Checkpoints that are remembered; of one that is older nothing is committed any more.
constexpr size_t kBegunKept = 64;
constexpr size_t kApplyBytes = sizeof(uint64_t);

absl::Status Nothing(uint64_t) { return absl::OkStatus(); }

void AppendBytes(absl::Span<const std::byte> bytes, UnitContent* to) {
  to->append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

absl::Status ReadSavedRows(const CheckpointReader& reader, const std::string& name,
                           TableContent* content) {
  return reader.ReadRows(name, [&](const checkpoint::RowBatch& batch) {
    for (uint64_t i = 0; i < batch.count; ++i) {
      UnitContent& unit = (*content)[batch.keys()[i]];
      const uint64_t applies = batch.applies()[i];
      unit.assign(reinterpret_cast<const char*>(&applies), sizeof(applies));
      for (size_t c = 1; c < batch.columns.size(); ++c) {
        if (c == checkpoint::kAppliesColumn) continue;
        const size_t bytes = batch.columns[c].size() / batch.count;
        AppendBytes(batch.columns[c].subspan(i * bytes, bytes), &unit);
      }
    }
    return absl::OkStatus();
  });
}

// The f32 copies of 16-bit parameters come last, as engines have them.
absl::Status ReadSavedChunks(const CheckpointReader& reader, const v1::TableSpec& spec,
                             TableContent* content) {
  std::vector<checkpoint::ArraySpec> arrays = checkpoint::DenseArrays(spec);
  std::stable_partition(arrays.begin(), arrays.end(), [](const checkpoint::ArraySpec& array) {
    return array.name == checkpoint::kApplies;
  });
  std::stable_partition(arrays.begin(), arrays.end(), [](const checkpoint::ArraySpec& array) {
    return array.name != checkpoint::kMaster;
  });
  const DenseLayout layout = LayoutOf(spec);
  for (const checkpoint::ArraySpec& array : arrays) {
    std::string bytes;
    const size_t element = array.dtype == "U64" ? 8 : array.dtype == "F32" ? 4 : 2;
    bytes.resize(array.elements * element);
    const absl::Status status = reader.ReadArray(
        spec.name(), array.name, [&](uint64_t first, absl::Span<const std::byte> part) {
          std::memcpy(bytes.data() + first * element, part.data(), part.size());
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
    const bool of_chunks = array.name == checkpoint::kApplies;
    for (uint32_t chunk = 0; chunk < layout.chunks(); ++chunk) {
      const uint64_t first = of_chunks ? chunk : layout.first_element(chunk);
      const uint64_t count = of_chunks ? 1 : layout.elements_of(chunk);
      (*content)[chunk].append(bytes, first * element, count * element);
    }
  }
  return absl::OkStatus();
}

// The first number, as exactly as it is known.
float ValueOf(const v1::TableSpec& spec, const UnitContent& unit, uint64_t elements) {
  size_t offset = kApplyBytes;
  if (spec.dim() == 0 && spec.dtype() == v1::DTYPE_BF16) {
    offset = unit.size() - elements * sizeof(float);
  }
  float value = 0;
  std::memcpy(&value, unit.data() + offset, sizeof(value));
  return value;
}

std::string Difference(const TableContent& is, const TableContent& wanted) {
  for (const auto& [unit, bytes] : wanted) {
    const auto it = is.find(unit);
    if (it == is.end()) return absl::StrCat(unit, " is missing");
    if (it->second == bytes) continue;
    const auto at = std::mismatch(bytes.begin(), bytes.end(), it->second.begin()).first;
    uint64_t applies = 0, has = 0;
    std::memcpy(&applies, bytes.data(), sizeof(applies));
    std::memcpy(&has, it->second.data(), sizeof(has));
    return absl::StrCat(unit, " differs at byte ", at - bytes.begin(), " of ", bytes.size(),
                        ", after ", has, " applies in place of ", applies);
  }
  for (const auto& [unit, bytes] : is) {
    if (!wanted.contains(unit)) return absl::StrCat(unit, " should not be there");
  }
  return "";
}

// Whether it is of a run of the job that neither continues nor is continued by the run of `newest`.
bool OfFormerRun(const v1::CheckpointManifest& one, const v1::CheckpointManifest& newest) {
  if (one.cluster_id() != newest.cluster_id()) return true;
  for (const v1::CheckpointTable& table : one.tables()) {
    for (const v1::CheckpointTable& other : newest.tables()) {
      if (table.id() == other.id()) return false;
    }
  }
  return true;
}

}  // namespace

// ---- as it happens ------------------------------------------------------------------------------

std::shared_ptr<const SavedLeast> SwarmSaved::Acknowledged() const {
  auto least = std::make_shared<SavedLeast>();
  for (const auto& [id, table] : world_->tables) {
    if (table.dropped() || world_->old_state) continue;
    if (table.steps() != nullptr) (*least)[id].generation = table.steps()->generation();
    auto& units = (*least)[id].units;
    for (uint32_t u = 0; u < table.units().size(); ++u) {
      units.emplace_back(table.Least(u), table.life(table.units()[u].partition));
    }
  }
  return least;
}

void SwarmSaved::CheckpointSent(uint64_t save, std::shared_ptr<const SavedLeast> least) {
  sent_[save] = std::move(least);
}

void SwarmSaved::CheckpointBegun(const v1::BeginCheckpointRequest& request,
                                 const shard::Engine& engine) {
  auto begun = std::find_if(begun_.begin(), begun_.end(),
                            [&](const Begun& b) { return b.id == request.checkpoint(); });
  if (begun == begun_.end()) {
    if (begun_.size() == kBegunKept) {
      sent_.erase(begun_.front().id);
      begun_.pop_front();
    }
    const auto sent = sent_.find(request.checkpoint());
    begun_.push_back({request.checkpoint(),
                      request.directory(),
                      sent == sent_.end() ? std::make_shared<SavedLeast>() : sent->second,
                      {}});
    begun = begun_.end() - 1;
    roots_.insert(checkpoint::ParentOf(request.directory()));
  }
  for (const v1::TableToCheckpoint& table : request.tables()) {
    for (auto& [partition, content] : ReadTable(engine, table.table())) {
      begun->cut[table.table()][partition].push_back(std::move(content));
    }
  }
}

void SwarmSaved::RestoreBegun(const v1::BeginRestoreRequest& request) {
  ++restores_begun_;
  const auto known = known_.find(request.path());
  if (known == known_.end()) return;
  for (const v1::RestoreTable& table : request.tables()) {
    restores_[table.table()] = {known->second.second, table.name()};
  }
}

// Computes independently which checkpoints have to stay: the last ones of the job, the first of
// each interval, the one with the greatest step, the last one of the run before, and their bases.
void SwarmSaved::Prunes(const std::string& root, const checkpoint::Retention& retention) {
  const auto listed = checkpoint::ListCheckpoints(&disk_, root);
  if (!listed.ok()) return;
  std::set<std::string> stay;
  std::set<uint64_t> intervals;
  uint32_t kept = 0;
  for (auto one = listed->rbegin(); one != listed->rend(); ++one) {
    if (!one->manifest.ok()) {
      // Its base is not known.
      for (const Listed& older : *listed) {
        if (older.number <= one->number) stay.insert(older.name);
      }
    } else if (one->manifest->job() != retention.job || kept++ < retention.keep_last) {
      stay.insert(one->name);
    }
  }
  for (const Listed& one : *listed) {
    if (!one.manifest.ok() || retention.keep_every == 0) continue;
    if (one.manifest->job() != retention.job) continue;
    const uint64_t place = one.manifest->step() > 0 ? one.manifest->step() : one.number;
    if (intervals.insert(place / retention.keep_every).second) stay.insert(one.name);
  }
  if (retention.keep_former_runs) {
    std::vector<const Listed*> of_job;
    for (const Listed& one : *listed) {
      if (one.manifest.ok() && one.manifest->job() == retention.job) of_job.push_back(&one);
    }
    uint64_t greatest = 0;
    for (const Listed* one : of_job) greatest = std::max(greatest, one->manifest->step());
    const auto stays = [&](auto&& matches) {
      const auto found = std::find_if(of_job.rbegin(), of_job.rend(), matches);
      if (found != of_job.rend()) stay.insert((*found)->name);
    };
    stays([&](const Listed* one) { return one->manifest->step() == greatest; });
    stays([&](const Listed* one) { return OfFormerRun(*one->manifest, *of_job.back()->manifest); });
  }
  for (auto one = listed->rbegin(); one != listed->rend(); ++one) {
    if (!stay.contains(one->name)) {
      may_go_.insert(Join(root, one->name));
    } else if (one->manifest.ok() && one->manifest->has_base()) {
      stay.insert(one->manifest->base().name());
    }
  }
}

void SwarmSaved::Damage(const std::string& path, bool damaged) {
  if (damaged) {
    damaged_.insert(path);
  } else {
    damaged_.erase(path);
  }
}

bool SwarmSaved::Doubtful(const std::string& path) const {
  const auto number = CheckpointNumber(checkpoint::BaseName(path));
  return std::any_of(damaged_.begin(), damaged_.end(), [&](const std::string& damaged) {
    return checkpoint::ParentOf(damaged) == checkpoint::ParentOf(path) &&
           CheckpointNumber(checkpoint::BaseName(damaged)) <= number;
  });
}

std::vector<std::shared_ptr<const SavedCheckpoint>> SwarmSaved::Known(
    const std::string& root) const {
  std::vector<std::shared_ptr<const SavedCheckpoint>> of_root;
  for (const auto& [path, known] : known_) {
    if (checkpoint::ParentOf(path) == root) of_root.push_back(known.second);
  }
  return of_root;
}

// ---- checkpoints --------------------------------------------------------------------------------

absl::StatusOr<SavedCheckpoint> SwarmSaved::ReadAll(const CheckpointReader& reader) const {
  absl::Status status = reader.CheckSizes();
  if (status.ok()) status = reader.Verify(Nothing);
  if (!status.ok()) return status;
  SavedCheckpoint saved;
  saved.path = reader.path();
  saved.job = reader.manifest().job();
  for (const v1::CheckpointTable& entry : reader.manifest().tables()) {
    SavedTable& table = saved.tables[entry.spec().name()];
    table.id = entry.id();
    table.steps = entry.steps();
    table.spec = entry.spec();
    if (entry.spec().job() != saved.job)
      return absl::InternalError("it has a table of another job");
    status = entry.spec().dim() > 0 ? ReadSavedRows(reader, entry.spec().name(), &table.content)
                                    : ReadSavedChunks(reader, entry.spec(), &table.content);
    if (!status.ok()) return status;
  }
  return saved;
}

std::map<uint32_t, TableContent> SwarmSaved::ByPartition(uint32_t id, const v1::TableSpec& spec,
                                                         const TableContent& content) const {
  std::map<uint32_t, TableContent> parts;
  for (const auto& [unit, bytes] : content) {
    const uint32_t partition =
        spec.dim() > 0 ? PartitionOfKey(id, unit, kSimPartitions)
                       : PartitionOfChunk(id, static_cast<uint32_t>(unit), kSimPartitions);
    parts[partition][unit] = bytes;
  }
  return parts;
}

std::string SwarmSaved::CompareWithCut(const SavedCheckpoint& saved, const Begun& begun) const {
  for (const auto& [name, table] : saved.tables) {
    const auto cut = begun.cut.find(table.id);
    if (cut == begun.cut.end()) return absl::StrCat("no shard has begun to save table ", name);
    std::map<uint32_t, TableContent> parts = ByPartition(table.id, table.spec, table.content);
    for (const auto& [partition, bytes] : parts) {
      if (cut->second.contains(partition)) continue;
      return absl::StrCat("no shard has begun to save partition ", partition, " of table ", name);
    }
    const bool later = table.spec.consistency() == v1::CONSISTENCY_SYNC;
    for (const auto& [partition, all] : cut->second) {
      if (later) break;
      std::string differs;
      for (const TableContent& had : all) {
        differs = Difference(parts[partition], had);
        if (differs.empty()) break;
      }
      if (differs.empty()) continue;
      return absl::StrCat("table ", table.id, " '", name, "' {", table.spec.ShortDebugString(),
                          "}, partition ", partition, " is not what its shard had: ", differs);
    }
    const std::string wrong = CheckValues(table, *begun.least);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::vector<float> SwarmSaved::ValuesOf(const SwarmTable& table, const SavedTable& saved) const {
  std::vector<float> values;
  for (uint32_t u = 0; u < table.units().size(); ++u) {
    const auto unit = saved.content.find(table.embedding() ? table.units()[u].key : u);
    values.push_back(
        unit == saved.content.end() ? 0 : ValueOf(saved.spec, unit->second, table.elements(u)));
  }
  return values;
}

std::string SwarmSaved::CheckValues(const SavedTable& saved, const SavedLeast& least) const {
  const auto model = world_->tables.find(saved.id);
  const auto bounds = least.find(saved.id);
  if (model == world_->tables.end() || bounds == least.end()) return "";
  const SwarmTable& table = model->second;
  const std::vector<float> values = ValuesOf(table, saved);
  for (uint32_t u = 0; u < values.size(); ++u) {
    const auto [low, life] = bounds->second.units[u];
    std::string wrong = table.CheckSaved(u, values[u], low, life);
    if (wrong.empty() && table.steps() != nullptr) {
      wrong = table.CheckSavedStep(u, values[u], saved.steps, bounds->second.generation, life);
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

void SwarmSaved::NoteSource(const std::string& path, const std::string& checksum) {
  auto& source = sources_[path];
  if (source.first != checksum) source = {checksum, compacts_};
}

std::string SwarmSaved::Unlisted(const std::string& path,
                                 const v1::CheckpointManifest& manifest) const {
  std::set<std::string> listed = {checkpoint::kManifestName};
  for (const v1::CheckpointFile& file : manifest.files()) listed.insert(file.name());
  const auto entries = disk_.List(path);
  if (!entries.ok()) return std::string(entries.status().message());
  for (const checkpoint::Disk::Entry& entry : *entries) {
    if (!listed.contains(entry.name)) return absl::StrCat(entry.name, " is not in its manifest");
  }
  return "";
}

void SwarmSaved::LookAtNew(const std::string& root, const Listed& listed) {
  const std::string path = Join(root, listed.name);
  const auto reader = CheckpointReader::Open(&disk_, path);
  auto read = reader.ok() ? ReadAll(*reader) : reader.status();
  if (!read.ok()) return world_->Violation(absl::StrCat(path, ": ", read.status().ToString()));
  const auto saved = std::make_shared<SavedCheckpoint>(*std::move(read));
  std::string wrong = "no shard has begun to save it";
  const uint64_t id = listed.manifest->id();
  for (const Begun& begun : begun_) {
    if (!absl::StartsWith(begun.directory, absl::StrCat(path, "."))) continue;
    if (id != 0 && id != begun.id) continue;
    wrong = CompareWithCut(*saved, begun);
    if (wrong.empty()) break;
  }
  const std::shared_ptr<const SavedCheckpoint> source = sources_.at(path).second;
  const std::string by_checkpoint = wrong;
  if (!wrong.empty() && source != nullptr && checkpoint::ParentOf(source->path) == root) {
    wrong = source->tables.size() == saved->tables.size() ? "" : "it has other tables";
    for (const auto& [name, table] : saved->tables) {
      const auto from = source->tables.find(name);
      std::string differs = from == source->tables.end()
                                ? "it is not there"
                                : Difference(table.content, from->second.content);
      if (differs.empty()) continue;
      wrong =
          absl::StrCat("table '", name, "' is not what ", source->path,
                       " has, of which it was made: ", differs, "; by its save: ", by_checkpoint);
    }
  }
  if (wrong.empty()) wrong = Unlisted(path, reader->manifest());
  if (!wrong.empty()) return world_->Violation(absl::StrCat(path, ": ", wrong));
  ++checked_;
  world_->Trace(absl::StrCat(path, " is there, based on ", reader->links() - 1));
  known_[path] = {listed.checksum, saved};
}

void SwarmSaved::Look(const std::string& root, bool verify) {
  if (disk_.crashed()) return;
  roots_.insert(root);
  const auto listed = checkpoint::ListCheckpoints(&disk_, root);
  if (absl::IsNotFound(listed.status())) return;
  if (!listed.ok()) return world_->Violation(listed.status().ToString());
  std::set<std::string> there;
  for (const Listed& one : *listed) {
    const std::string path = Join(root, one.name);
    there.insert(path);
    const bool damaged = damaged_.contains(path);
    if (!damaged && !one.manifest.ok()) {
      return world_->Violation(absl::StrCat(path, ": ", one.manifest.status().ToString()));
    }
    const auto known = known_.find(path);
    const bool is_new = known == known_.end() || (!damaged && known->second.first != one.checksum);
    if (is_new) NoteSource(path, one.checksum);
    if (is_new && !Doubtful(path)) LookAtNew(root, one);
    if (is_new || !verify || (Doubtful(path) && !damaged)) continue;
    const auto reader = CheckpointReader::Open(&disk_, path);
    const absl::Status whole = reader.ok() ? reader->Verify(Nothing) : reader.status();
    if (whole.ok() == damaged) {
      world_->Violation(
          absl::StrCat(path, damaged ? " has a wrong bit: " : ": ", whole.ToString()));
    }
  }
  const auto gone = [&](const auto& entry) {
    return checkpoint::ParentOf(entry.first) == root && !there.contains(entry.first);
  };
  std::erase_if(known_, gone);
  std::erase_if(sources_, gone);
  std::erase_if(reported_, [&](const std::string& path) {
    if (checkpoint::ParentOf(path) != root || there.contains(path)) return false;
    if (!may_go_.contains(path)) {
      world_->Violation(absl::StrCat(path, " was said to be complete, and is gone"));
    }
    return true;
  });
  std::erase_if(may_go_, [&](const std::string& path) {
    return checkpoint::ParentOf(path) == root && !there.contains(path);
  });
}

void SwarmSaved::LookAll(bool verify) {
  for (const std::string& root : std::set<std::string>(roots_)) Look(root, verify);
}

// ---- restored tables ----------------------------------------------------------------------------

void SwarmSaved::FollowRestores(const SwarmChecks& checks) {
  const v1::ClusterView& view = world_->cluster->view();
  if (world_->old_state || view.revision() == revision_) return;
  revision_ = view.revision();
  for (const v1::Table& served : view.tables()) {
    const auto table = world_->tables.find(served.id());
    if (table == world_->tables.end() || !table->second.restoring() || served.restoring()) continue;
    CheckServed(&table->second, view, checks);
  }
}

void SwarmSaved::CheckServed(SwarmTable* table, const v1::ClusterView& view,
                             const SwarmChecks& checks) {
  const auto restore = restores_.find(table->id());
  if (restore == restores_.end()) {
    return world_->Violation(absl::StrCat("table ", table->id(), " is served and was not loaded"));
  }
  const auto& [from, name] = restore->second;
  const SavedTable& saved = from->tables.at(name);
  world_->Trace(absl::StrCat("table ", table->id(), " has '", name, "' of ", from->path));
  std::map<uint32_t, TableContent> wanted = ByPartition(table->id(), saved.spec, saved.content);
  for (const v1::Partition& p : view.partitions()) {
    const shard::Engine* primary = checks.EngineOf(p.primary(), p.shard());
    if (primary == nullptr || table->lost(p.id())) continue;
    const std::map<uint32_t, TableContent> has = ReadTable(*primary, table->id());
    if (!has.contains(p.id())) continue;
    ++compared_;
    const std::string differs = Difference(has.at(p.id()), wanted[p.id()]);
    if (differs.empty()) continue;
    world_->Violation(absl::StrCat("table ", table->id(), " {", saved.spec.ShortDebugString(),
                                   "}, partition ", p.id(), " is not what ", from->path,
                                   " has: ", differs));
    break;
  }
  table->Restored(ValuesOf(*table, saved), world_->tables.at(saved.id).rates());
}

}  // namespace verbena::test
