#include "proto/spec/table_spec.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/optimizer_spec.h"
#include "proto/spec/option_check.h"
#include "proto/spec/option_value.h"
#include "proto/spec/spec_text.h"
#include "proto/spec/table_limits.h"

namespace verbena {
namespace {

constexpr int kMaxDimensions = 8;
constexpr uint64_t kMaxElements = uint64_t{1} << 40;

absl::Status Bad(const v1::TableSpec& spec, const std::string& field, const std::string& value,
                 const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrCat("table ", Quoted(spec.name()), ": ", field, " is ",
                                                 value, "; allowed: ", allowed));
}

std::string Word(const char* option, const v1::TableSpec& spec) {
  return OptionText(*FindTableOption(option), spec);
}

absl::Status CheckShape(const v1::TableSpec& spec) {
  if (spec.dim() > 0) return absl::OkStatus();
  if (spec.shape_size() < 1 || spec.shape_size() > kMaxDimensions) {
    return Bad(spec, "shape",
               spec.shape_size() > kMaxDimensions
                   ? absl::StrCat("of ", spec.shape_size(), " dimensions")
                   : ShapeString(spec),
               absl::StrCat("1..", kMaxDimensions, " dimensions"));
  }
  uint64_t elements = 1;
  for (uint64_t dimension : spec.shape()) {
    if (dimension > kMaxElements / elements) {
      return Bad(spec, "shape", ShapeString(spec), "at most 2^40 elements");
    }
    elements *= dimension;
  }
  return absl::OkStatus();
}

absl::Status CheckChunks(const v1::TableSpec& spec) {
  if (spec.dim() * sizeof(float) > spec.chunk_bytes()) {
    return Bad(spec, "chunk_bytes", absl::StrCat(spec.chunk_bytes()),
               absl::StrCat("enough for a row of dim ", spec.dim(), ": ",
                            spec.dim() * sizeof(float), " bytes"));
  }
  const DenseLayout layout = LayoutOf(spec);
  const uint64_t chunks = (layout.elements + layout.chunk_elements - 1) / layout.chunk_elements;
  if (chunks > kMostTableChunks) {
    return Bad(spec, "chunk_bytes", absl::StrCat(spec.chunk_bytes()),
               absl::StrCat("enough to cut shape ", ShapeString(spec), " into at most ",
                            kMostTableChunks, " chunks, not ", chunks));
  }
  return absl::OkStatus();
}

// Codecs that encode every number: allowed for parameters and for gradients of rows.
bool EncodesAll(v1::Codec codec) { return codec > v1::CODEC_NONE && codec <= v1::CODEC_FP8_E5M2; }

absl::Status CheckCodecs(const v1::TableSpec& spec) {
  if (spec.push_codec() != v1::CODEC_NONE && spec.gradient_dtype() != v1::DTYPE_F32) {
    return Bad(spec, "gradient_dtype", Word("gradient_dtype", spec),
               absl::StrCat("f32 where push_codec, which is ", CodecName(spec.push_codec()),
                            ", is not none: the codec encodes f32"));
  }
  if (spec.pull_codec() != v1::CODEC_NONE && spec.dtype() != v1::DTYPE_F32) {
    return Bad(spec, "dtype", Word("dtype", spec),
               absl::StrCat("f32 where pull_codec, which is ", CodecName(spec.pull_codec()),
                            ", is not none: the codec decodes to f32"));
  }
  return absl::OkStatus();
}

absl::Status CheckInitializer(const v1::TableSpec& spec) {
  const v1::Initializer& init = spec.initializer();
  if (init.kind() == v1::Initializer::UNIFORM && !(init.a() < init.b())) {
    return Bad(spec, "initializer.b", Number(init.b()),
               absl::StrCat("more than initializer.a, which is ", Number(init.a()),
                            ", for uniform [a, b)"));
  }
  if (init.kind() == v1::Initializer::NORMAL && init.b() < 0) {
    return Bad(spec, "initializer.b", Number(init.b()), "a standard deviation >= 0");
  }
  return absl::OkStatus();
}

absl::Status CheckEviction(const v1::TableSpec& spec) {
  const v1::Eviction& e = spec.eviction();
  if (e.max_rows() != 0 && e.max_bytes() != 0) {
    return Bad(spec, "eviction.max_bytes", absl::StrCat(e.max_bytes()), "0 where max_rows is set");
  }
  const bool limits = e.kind() == v1::Eviction::LRU || e.kind() == v1::Eviction::LFU;
  if (limits && e.max_rows() == 0 && e.max_bytes() == 0) {
    return Bad(spec, "eviction.max_rows", "0", "1 and more, or max_bytes instead");
  }
  return absl::OkStatus();
}

// A norm over several chunks is summed between a step's contributions and its commit. Only a sync
// step has such a phase, and only a dense table's chunks are known in advance.
absl::Status CheckStepNorms(const v1::TableSpec& spec) {
  if (!NeedsStepNorms(spec.optimizer())) return absl::OkStatus();
  if (spec.consistency() == v1::CONSISTENCY_SYNC && spec.dim() == 0) return absl::OkStatus();
  const char* kind = spec.dim() > 0 ? "an embedding table" : "an async or ssp table";
  if (spec.optimizer().clip_global_norm() > 0) {
    return Bad(spec, "optimizer.clip_global_norm", Number(spec.optimizer().clip_global_norm()),
               absl::StrCat("0 for ", kind,
                            ": the norm of a step is known in dense sync tables alone; "
                            "clip_chunk_norm and clip_value work everywhere"));
  }
  return Bad(spec, "optimizer.name", Quoted(spec.optimizer().name()),
             absl::StrCat("another for ", kind,
                          ": a trust ratio is known in dense sync tables alone; adamw works "
                          "everywhere"));
}

// f32 for an unknown type, so that sizes are valid for any view. Also for an unset type, which a
// table has that was stored before gradients had a type.
ElementType TypeOf(v1::DType dtype) {
  const bool known = v1::DType_IsValid(dtype) && dtype != v1::DTYPE_UNSPECIFIED;
  return known ? static_cast<ElementType>(dtype) : ElementType::kF32;
}

}  // namespace

absl::StatusOr<v1::TableSpec> NormalizeTableSpec(v1::TableSpec spec) {
  absl::Status status = NormalizeOptions("", &spec);
  if (status.ok()) status = CheckOptimizerRules(spec.optimizer());
  if (!status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("table ", Quoted(spec.name()), ": ", std::string(status.message())));
  }
  for (const auto check :
       {CheckShape, CheckCodecs, CheckInitializer, CheckStepNorms, CheckEviction, CheckChunks}) {
    if (status = check(spec); !status.ok()) return status;
  }
  return spec;
}

ElementType ParameterType(const v1::TableSpec& spec) { return TypeOf(spec.dtype()); }

ElementType RowType(const v1::TableSpec& spec) { return TypeOf(spec.row_dtype()); }

ElementType GradientType(const v1::TableSpec& spec) { return TypeOf(spec.gradient_dtype()); }

bool HasPushCodec(const v1::TableSpec& spec) {
  return v1::Codec_IsValid(spec.push_codec()) && spec.push_codec() > v1::CODEC_NONE;
}

ElementType PushType(const v1::TableSpec& spec) {
  // For any view: RowBytes() is defined only for these codecs.
  if (spec.dim() > 0 && !EncodesAll(spec.push_codec())) return ElementType::kF32;
  return HasPushCodec(spec) ? static_cast<ElementType>(spec.push_codec()) : GradientType(spec);
}

bool HasPullCodec(const v1::TableSpec& spec) {
  // For any view: decoding gives as many f32 as there are elements.
  return EncodesAll(spec.pull_codec()) && ParameterType(spec) == ElementType::kF32;
}

ElementType PullType(const v1::TableSpec& spec) {
  return HasPullCodec(spec) ? static_cast<ElementType>(spec.pull_codec()) : ParameterType(spec);
}

std::string CodecName(v1::Codec codec) {
  // Unset in a table that was stored before there were codecs.
  return EnumWord(*v1::Codec_descriptor(), codec == v1::CODEC_UNSPECIFIED ? v1::CODEC_NONE : codec);
}

DenseLayout LayoutOf(const v1::TableSpec& spec) {
  uint64_t elements = spec.dim() > 0 ? 0 : 1;
  for (uint64_t dimension : spec.shape()) elements *= dimension;
  const uint32_t parameter = ElementBytes(ParameterType(spec));
  const uint32_t gradient = ElementBytes(GradientType(spec));
  // A slot holds a chunk's gradients, and its parameters arrive in one write.
  return {elements, spec.chunk_bytes() / std::max(parameter, gradient), parameter, gradient};
}

absl::Status CheckSameSpec(const v1::TableSpec& existing, const v1::TableSpec& wanted) {
  const std::optional<FieldDifference> difference = FirstDifference(existing, wanted);
  if (!difference) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "table ", Quoted(wanted.name()), ": ", difference->field, " is ", difference->first,
      " in the existing table and ", difference->second, " in the one asked for"));
}

std::string ShapeString(const v1::TableSpec& spec) {
  return absl::StrCat("[", absl::StrJoin(spec.shape(), ", "), "]");
}

}  // namespace verbena
