#include "server/coordinator/sqlite_entries.h"

#include <xxhash.h>

#include "absl/container/flat_hash_map.h"

namespace verbena::server {
namespace {

int64_t Sum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
int64_t Difference(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}

}  // namespace

int SqliteEntries::Prepare(sqlite::Database* db) {
  db_ = db;
  int code =
      db->Prepare("INSERT INTO entries(kind, key, content, checksum) VALUES(?, ?, ?, ?)", &put_);
  if (code == SQLITE_OK) {
    code =
        db->Prepare("DELETE FROM entries WHERE kind = ? AND key = ? RETURNING checksum", &remove_);
  }
  return code;
}

int64_t SqliteEntries::ChecksumOf(const Key& key, const std::string& content) {
  std::string bytes;
  const int64_t head[] = {key.kind, key.number, static_cast<int64_t>(key.name.size())};
  bytes.append(reinterpret_cast<const char*>(head), sizeof(head));
  bytes.append(key.name);
  bytes.append(content);
  return static_cast<int64_t>(XXH3_64bits(bytes.data(), bytes.size()));
}

void SqliteEntries::Bind(const Key& key, sqlite::Statement* statement) {
  statement->BindInt(1, key.kind);
  if (key.kind == kJob) {
    statement->BindBlob(2, key.name);
  } else {
    statement->BindInt(2, key.number);
  }
}

int SqliteEntries::Remove(const Key& key, int64_t* sum) {
  Bind(key, &remove_);
  int code = remove_.Step();
  if (code == SQLITE_ROW) {
    ++rows_written_;
    *sum = Difference(*sum, remove_.Int(0));
    code = remove_.Step();
  }
  remove_.Reset();
  return code;
}

int SqliteEntries::Put(const Key& key, const google::protobuf::Message& content, int64_t* sum) {
  int code = Remove(key, sum);
  if (code != SQLITE_DONE) return code;
  const std::string bytes = content.SerializeAsString();
  const int64_t checksum = ChecksumOf(key, bytes);
  Bind(key, &put_);
  put_.BindBlob(3, bytes);
  put_.BindInt(4, checksum);
  code = put_.Step();
  put_.Reset();
  ++rows_written_;
  *sum = Sum(*sum, checksum);
  return code;
}

int SqliteEntries::PutJob(const v1::Job& header, int64_t* sum) {
  return Put({.kind = kJob, .name = header.name()}, header, sum);
}

// As a job with its name and this member alone.
int SqliteEntries::PutMember(const std::string& job, const v1::Worker& member, int64_t* sum) {
  v1::Job one;
  one.set_name(job);
  *one.add_members() = member;
  return Put({.kind = kMember, .number = static_cast<int64_t>(member.incarnation())}, one, sum);
}

int SqliteEntries::WriteAll(const v1::ClusterView& view, int64_t* sum) {
  *sum = 0;
  const int cleared = db_->Execute("DELETE FROM entries");
  int code = cleared == SQLITE_OK ? SQLITE_DONE : cleared;
  for (const v1::Table& table : view.tables()) {
    if (code == SQLITE_DONE) code = Put({.kind = kTable, .number = table.id()}, table, sum);
  }
  for (const v1::Job& job : view.jobs()) {
    v1::Job header = job;
    header.clear_members();
    if (code == SQLITE_DONE) code = PutJob(header, sum);
    for (const v1::Worker& member : job.members()) {
      if (code == SQLITE_DONE) code = PutMember(job.name(), member, sum);
    }
  }
  return code;
}

int SqliteEntries::Write(const v1::ViewChange& change, absl::Span<const uint64_t> gone_members,
                         int64_t* sum) {
  int code = SQLITE_DONE;
  for (const uint32_t id : change.removed_tables()) {
    if (code == SQLITE_DONE) code = Remove({.kind = kTable, .number = id}, sum);
  }
  for (const v1::Table& table : change.tables()) {
    if (code == SQLITE_DONE) code = Put({.kind = kTable, .number = table.id()}, table, sum);
  }
  for (const std::string& name : change.removed_jobs()) {
    if (code == SQLITE_DONE) code = Remove({.kind = kJob, .name = name}, sum);
  }
  for (const uint64_t member : gone_members) {
    if (code != SQLITE_DONE) break;
    code = Remove({.kind = kMember, .number = static_cast<int64_t>(member)}, sum);
  }
  for (const v1::JobChange& job : change.jobs()) {
    if (code == SQLITE_DONE) code = PutJob(job.job(), sum);
    for (const v1::Worker& member : job.members()) {
      if (code == SQLITE_DONE) code = PutMember(job.job().name(), member, sum);
    }
  }
  return code;
}

int SqliteEntries::Load(v1::ClusterView* view, int64_t* sum) {
  sqlite::Statement read;
  int code =
      db_->Prepare("SELECT kind, key, content, checksum FROM entries ORDER BY kind, key", &read);
  if (code != SQLITE_OK) return code;
  absl::flat_hash_map<std::string, v1::Job*> jobs;
  *sum = 0;
  while ((code = read.Step()) == SQLITE_ROW) {
    Key key{static_cast<Kind>(read.Int(0))};
    const std::string name = key.kind == kJob ? read.Blob(1) : "";
    if (key.kind == kJob) {
      key.name = name;
    } else {
      key.number = read.Int(1);
    }
    const std::string content = read.Blob(2);
    if (read.Int(3) != ChecksumOf(key, content)) return SQLITE_CORRUPT;
    *sum = Sum(*sum, read.Int(3));
    if (key.kind == kTable) {
      if (!view->add_tables()->ParseFromString(content)) return SQLITE_CORRUPT;
      continue;
    }
    v1::Job job;
    if (!job.ParseFromString(content)) return SQLITE_CORRUPT;
    if (key.kind == kJob) {
      v1::Job* added = view->add_jobs();
      added->Swap(&job);
      jobs[added->name()] = added;
      continue;
    }
    const auto it = jobs.find(job.name());
    if (it == jobs.end() || job.members_size() != 1) return SQLITE_CORRUPT;
    it->second->add_members()->Swap(job.mutable_members(0));
  }
  return code;
}

}  // namespace verbena::server
