#include "server/cli/verbena/checkpoint_report.h"

#include "absl/strings/str_cat.h"
#include "proto/base/json.h"
#include "proto/spec/table_spec.h"
#include "server/cli/verbena/format.h"
#include "server/cli/verbena/spec_report.h"
#include "server/cli/verbena/text_table.h"

namespace verbena::cli {
namespace {

using checkpoint::Listed;

uint64_t BytesOf(const v1::CheckpointManifest& manifest) {
  uint64_t bytes = 0;
  for (const v1::CheckpointFile& file : manifest.files()) bytes += file.bytes();
  return bytes;
}

uint64_t RowsOf(const v1::CheckpointManifest& manifest) {
  uint64_t rows = 0;
  for (const v1::CheckpointTable& table : manifest.tables()) rows += table.rows();
  return rows;
}

void AddBase(const v1::CheckpointManifest& manifest, JsonWriter* json) {
  if (manifest.has_base()) {
    json->Add("base", manifest.base().name());
  } else {
    json->AddNull("base");
  }
}

JsonWriter TableJson(const v1::CheckpointTable& table) {
  const v1::TableSpec& spec = table.spec();
  JsonArray arrays;
  const auto specs =
      spec.dim() == 0 ? checkpoint::DenseArrays(spec) : checkpoint::RowArrays(spec, table.rows());
  for (const checkpoint::ArraySpec& array : specs) arrays.Add(array.name);
  JsonWriter json;
  AddOptions(spec, &json);
  json.Add("rows", table.rows());
  json.Add("steps", table.steps());
  json.Add("arrays", arrays);
  return json;
}

JsonWriter ListedJson(const Listed& listed) {
  JsonWriter json;
  const v1::CheckpointManifest none;
  const v1::CheckpointManifest& manifest = listed.manifest.ok() ? *listed.manifest : none;
  json.Add("name", listed.name);
  json.Add("number", listed.number);
  json.Add("job", manifest.job());
  json.Add("step", manifest.step());
  json.Add("time", manifest.time());
  AddBase(manifest, &json);
  json.Add("tables", manifest.tables_size());
  json.Add("rows", RowsOf(manifest));
  json.Add("files", manifest.files_size());
  json.Add("bytes", BytesOf(manifest));
  if (listed.manifest.ok()) {
    json.AddNull("error");
  } else {
    json.Add("error", std::string(listed.manifest.status().message()));
  }
  return json;
}

}  // namespace

std::string CheckpointsText(const std::vector<Listed>& all) {
  if (all.empty()) return "no checkpoints\n";
  TextTable table({{"NAME"},
                   {"STEP", TextTable::Align::kRight},
                   {"SIZE", TextTable::Align::kRight},
                   {"FILES", TextTable::Align::kRight},
                   {"TABLES", TextTable::Align::kRight},
                   {"ROWS", TextTable::Align::kRight},
                   {"BASED ON"},
                   {"JOB"},
                   {"TIME"}});
  std::string errors;
  for (const Listed& listed : all) {
    if (!listed.manifest.ok()) {
      table.AddRow({Printable(listed.name), "-", "-", "-", "-", "-", "cannot be read"});
      absl::StrAppend(&errors, Printable(std::string(listed.manifest.status().message())), "\n");
      continue;
    }
    const v1::CheckpointManifest& manifest = *listed.manifest;
    table.AddRow({listed.name, absl::StrCat(manifest.step()), Bytes(BytesOf(manifest)),
                  absl::StrCat(manifest.files_size()), absl::StrCat(manifest.tables_size()),
                  Count(RowsOf(manifest)), manifest.has_base() ? manifest.base().name() : "-",
                  Printable(manifest.job()), Printable(manifest.time())});
  }
  return table.ToString() + errors;
}

std::string CheckpointsJson(const std::string& directory, const std::vector<Listed>& all) {
  JsonArray checkpoints;
  for (const Listed& listed : all) checkpoints.Add(ListedJson(listed));
  JsonWriter json;
  json.Add("directory", directory);
  json.Add("checkpoints", checkpoints);
  return json.ToString() + "\n";
}

std::string CheckpointText(const checkpoint::CheckpointReader& reader) {
  const v1::CheckpointManifest& manifest = reader.manifest();
  std::string text = absl::StrCat(
      Printable(reader.path()), ": step ", manifest.step(), " of job '", Printable(manifest.job()),
      "', saved ", Printable(manifest.time()), " by ", Printable(manifest.written_by()), "\n",
      Bytes(reader.bytes()), ", format ", manifest.format_version(), ", ", manifest.partitions(),
      " partitions", manifest.has_base() ? absl::StrCat(", changes ", manifest.base().name()) : "",
      "\n\n");
  TextTable tables({{"TABLE"},
                    {"SHAPE"},
                    {"TYPE"},
                    {"CONSISTENCY"},
                    {"OPTIMIZER"},
                    {"ROWS", TextTable::Align::kRight},
                    {"STEPS", TextTable::Align::kRight},
                    {"OTHER OPTIONS"}});
  for (const v1::CheckpointTable& table : manifest.tables()) {
    const v1::TableSpec& spec = table.spec();
    tables.AddRow({spec.name(), ShapeWord(spec), OptionWord("dtype", spec),
                   OptionWord("consistency", spec),
                   absl::StrCat(spec.optimizer().name(), " ", spec.optimizer().rate()),
                   spec.dim() > 0 ? Count(table.rows()) : "-", absl::StrCat(table.steps()),
                   OtherOptionsText(spec)});
  }
  TextTable files(
      {{"FILE"}, {"SIZE", TextTable::Align::kRight}, {"TENSORS", TextTable::Align::kRight}});
  for (const v1::CheckpointFile& file : manifest.files()) {
    files.AddRow({file.name(), Bytes(file.bytes()), absl::StrCat(file.tensors_size())});
  }
  return absl::StrCat(text, tables.ToString(), "\n", files.ToString());
}

std::string CheckpointJson(const checkpoint::CheckpointReader& reader,
                           const std::vector<std::string>& passed_over) {
  const v1::CheckpointManifest& manifest = reader.manifest();
  JsonArray tables, files;
  for (const v1::CheckpointTable& table : manifest.tables()) tables.Add(TableJson(table));
  for (const v1::CheckpointFile& file : manifest.files()) {
    JsonWriter json;
    json.Add("name", file.name());
    json.Add("bytes", file.bytes());
    json.Add("tensors", file.tensors_size());
    files.Add(json);
  }
  JsonArray passed;
  for (const std::string& why : passed_over) passed.Add(why);
  JsonWriter json;
  json.Add("checkpoint", reader.path());
  json.Add("passed_over", passed);
  json.Add("format_version", manifest.format_version());
  json.Add("written_by", manifest.written_by());
  json.Add("time", manifest.time());
  json.Add("cluster_id", manifest.cluster_id());
  json.Add("job", manifest.job());
  json.Add("step", manifest.step());
  json.Add("partitions", manifest.partitions());
  json.Add("duration_ms", manifest.duration_ms());
  AddBase(manifest, &json);
  json.Add("bytes", reader.bytes());
  json.Add("tables", tables);
  json.Add("files", files);
  return json.ToString() + "\n";
}

}  // namespace verbena::cli
