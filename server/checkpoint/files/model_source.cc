#include "server/checkpoint/files/model_source.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "proto/spec/spec_text.h"
#include "server/checkpoint/files/manifest.h"
#include "server/checkpoint/files/weight_index.h"

namespace verbena::checkpoint {
namespace {

constexpr char kIndexSuffix[] = ".safetensors.index.json";
constexpr char kFileSuffix[] = ".safetensors";

std::string OtherName(size_t number, size_t all) {
  return absl::StrFormat("other-%05d-of-%05d.safetensors", number, all);
}

// All files that Export() writes in addition to an index.
absl::StatusOr<std::vector<std::string>> Others(Disk* disk, const std::string& directory) {
  const absl::StatusOr<std::vector<Disk::Entry>> entries = disk->List(directory);
  if (!entries.ok()) return entries.status();
  std::set<std::string> there;
  std::vector<std::string> others;
  for (const Disk::Entry& entry : *entries) {
    if (!entry.directory) there.insert(entry.name);
  }
  for (const std::string& name : there) {
    uint32_t number = 0, all = 0;
    const std::vector<std::string> parts = absl::StrSplit(name, absl::ByAnyChar("-."));
    if (parts.size() != 5 || !absl::SimpleAtoi(parts[1], &number) ||
        !absl::SimpleAtoi(parts[3], &all) || name != OtherName(number, all)) {
      continue;
    }
    others.push_back(name);
    // Each names the one before it, the last one the first: so all of them are looked for.
    const std::string before = OtherName(number > 1 ? number - 1 : all, all);
    if (number > 0 && number <= all && there.contains(before)) continue;
    return absl::NotFoundError(absl::StrCat(Join(directory, name), " is one of ", all,
                                            " files, and ", before, " is not there"));
  }
  return others;
}

// The file that a directory is imported by: its index, or its only file.
absl::StatusOr<std::string> Chosen(const std::string& path,
                                   const std::vector<Disk::Entry>& entries) {
  std::vector<std::string> indices, files;
  for (const Disk::Entry& entry : entries) {
    if (entry.directory) continue;
    if (entry.name == kManifestName) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is a checkpoint already; 'verbena checkpoint restore' loads it"));
    }
    if (absl::EndsWith(entry.name, kIndexSuffix)) indices.push_back(entry.name);
    if (absl::EndsWith(entry.name, kFileSuffix)) files.push_back(entry.name);
  }
  const std::vector<std::string>& choice = indices.empty() ? files : indices;
  if (choice.size() == 1) return Join(path, choice[0]);
  if (choice.empty()) {
    return absl::NotFoundError(absl::StrCat(path, " has neither *", kIndexSuffix, " nor *",
                                            kFileSuffix, "; name a file, or another directory"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path, " has ", choice.size(),
                   indices.empty() ? " safetensors files and no index of them: "
                                   : " indices of safetensors files: ",
                   absl::StrJoin(choice, ", "), "; name one of them"));
}

}  // namespace

std::string Which(const SourceTensor& tensor) {
  return absl::StrCat(tensor.file->path(), ": tensor ", Quoted(tensor.info->name));
}

absl::Status ModelSource::AddFile(Disk* disk, const std::string& path,
                                  const std::set<std::string>& skipped,
                                  const std::map<std::string, std::string>* index) {
  absl::StatusOr<SafetensorsReader> opened =
      SafetensorsReader::Open(disk, path, UnknownTypes::kKeep);
  if (!opened.ok()) return opened.status();
  files_.push_back(std::make_unique<SafetensorsReader>(*std::move(opened)));
  const SafetensorsReader& file = *files_.back();
  for (const TensorInfo& info : file.header().tensors) {
    const bool skip = skipped.contains(info.name);
    const SourceTensor tensor = {&file, &info};
    if (index != nullptr && !skip) {
      const auto named = index->find(info.name);
      if (named == index->end() || named->second != BaseName(path)) {
        return absl::DataLossError(absl::StrCat(
            Which(tensor), " is ",
            named == index->end() ? "not in the index"
                                  : absl::StrCat("in ", Quoted(named->second), " by the index"),
            "; --skip leaves it out"));
      }
    }
    const auto [there, added] = all_.emplace(info.name, path);
    if (!added && !skip) {
      return absl::DataLossError(absl::StrCat(Which(tensor), " is in ", there->second, " too"));
    }
    if (skip) continue;
    by_name_[info.name] = tensors_.size();
    tensors_.push_back(tensor);
  }
  return absl::OkStatus();
}

absl::Status ModelSource::AddIndexed(Disk* disk, const std::string& index,
                                     const std::set<std::string>& skipped) {
  const absl::StatusOr<std::string> text = ReadWhole(disk, index, kMaxIndexBytes);
  if (!text.ok()) return text.status();
  const auto map = ParseWeightIndex(index, *text);
  if (!map.ok()) return map.status();
  std::set<std::string> files;
  for (const auto& [tensor, file] : *map) files.insert(file);
  const std::string directory = ParentOf(index);
  for (const std::string& file : files) {
    const absl::Status status = AddFile(disk, Join(directory, file), skipped, &*map);
    if (absl::IsNotFound(status)) {
      return absl::NotFoundError(
          absl::StrCat(index, " names ", Quoted(file), ": ", std::string(status.message())));
    }
    if (!status.ok()) return status;
  }
  for (const auto& [tensor, file] : *map) {
    if (all_.contains(tensor)) continue;
    return absl::DataLossError(absl::StrCat(index, " lists tensor ", Quoted(tensor), " in ",
                                            Quoted(file), ", but it is not there"));
  }
  const absl::StatusOr<std::vector<std::string>> others = Others(disk, directory);
  if (!others.ok()) return others.status();
  for (const std::string& other : *others) {
    if (files.contains(other)) continue;
    const absl::Status status = AddFile(disk, Join(directory, other), skipped, nullptr);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelSource> ModelSource::Open(Disk* disk, const std::string& path,
                                              const std::set<std::string>& skipped) {
  ModelSource source;
  source.path_ = path;
  std::string file = path;
  const absl::Status opened = disk->Open(path).status();
  if (absl::IsFailedPrecondition(opened)) {
    // A directory, or nothing that can be read; Chosen() then reports the reason.
    const absl::StatusOr<std::vector<Disk::Entry>> entries = disk->List(path);
    if (!entries.ok()) return opened;
    absl::StatusOr<std::string> chosen = Chosen(path, *entries);
    if (!chosen.ok()) return chosen.status();
    file = *std::move(chosen);
  } else if (!opened.ok()) {
    return opened;
  }
  const absl::Status status = absl::EndsWith(file, ".json")
                                  ? source.AddIndexed(disk, file, skipped)
                                  : source.AddFile(disk, file, skipped, nullptr);
  if (!status.ok()) return status;
  return source;
}

const SourceTensor* ModelSource::Find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace verbena::checkpoint
