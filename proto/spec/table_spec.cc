#include "proto/spec/table_spec.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/spec/admission_spec.h"
#include "proto/spec/cold_tier_spec.h"
#include "proto/spec/eviction_spec.h"
#include "proto/spec/optimizer_spec.h"
#include "proto/spec/spec_text.h"
#include "proto/spec/table_limits.h"

namespace verbena {
namespace {

constexpr int kMaxDimensions = 8;
constexpr uint64_t kMaxElements = uint64_t{1} << 40;
constexpr uint32_t kMinChunkBytes = 256;
// A lane's large slot holds a chunk and its header, and a ring has several of them.
constexpr uint32_t kMaxChunkBytes = 8 << 20;
constexpr uint32_t kChunkAlignment = 64;

struct NamedCodec {
  v1::Codec codec;
  const char* name;
};
constexpr NamedCodec kCodecs[] = {
    {v1::CODEC_NONE, "none"}, {v1::CODEC_F16, "f16"},           {v1::CODEC_BF16, "bf16"},
    {v1::CODEC_INT8, "int8"}, {v1::CODEC_FP8_E4M3, "fp8_e4m3"}, {v1::CODEC_FP8_E5M2, "fp8_e5m2"},
    {v1::CODEC_SIGN, "sign"}, {v1::CODEC_TOP_K, "top_k"}};

absl::Status Bad(const v1::TableSpec& spec, const std::string& field, const std::string& value,
                 const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrCat("table ", Quoted(spec.name()), ": ", field, " is ",
                                                 value, "; allowed: ", allowed));
}

bool IsNameCharacter(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '/' || c == '-';
}

absl::Status CheckNames(const v1::TableSpec& spec) {
  bool good = !spec.name().empty() && spec.name().size() <= kMaxNameBytes;
  for (char c : spec.name()) good = good && IsNameCharacter(c);
  if (!good) {
    return Bad(spec, "name", Quoted(spec.name()), "1..128 characters of [A-Za-z0-9_./-]");
  }
  good = !spec.job().empty() && spec.job().size() <= kMaxNameBytes;
  // Job names appear in logs and metric labels, so line breaks are not allowed.
  for (char c : spec.job()) good = good && static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  if (!good) {
    return Bad(spec, "job", Quoted(spec.job()), "1..128 characters, no control characters");
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const v1::TableSpec& spec) {
  if (spec.dim() > 0) {
    if (spec.dim() > kMaxRowElements) {
      return Bad(
          spec, "dim", absl::StrCat(spec.dim()),
          absl::StrCat("1..", kMaxRowElements, " for an embedding table, 0 for a dense one"));
    }
    if (spec.shape_size() == 0) return absl::OkStatus();
    return Bad(spec, "shape", ShapeString(spec),
               absl::StrCat("none beside dim, which is ", spec.dim(), ": one of the two"));
  }
  if (spec.shape_size() < 1 || spec.shape_size() > kMaxDimensions) {
    return Bad(spec, "shape",
               spec.shape_size() > kMaxDimensions
                   ? absl::StrCat("of ", spec.shape_size(), " dimensions")
                   : ShapeString(spec),
               absl::StrCat("1..", kMaxDimensions, " dimensions"));
  }
  uint64_t elements = 1;
  for (uint64_t dimension : spec.shape()) {
    if (dimension == 0) {
      return Bad(spec, "shape", ShapeString(spec), "dimensions greater than 0");
    }
    if (dimension > kMaxElements / elements) {
      return Bad(spec, "shape", ShapeString(spec), "at most 2^40 elements");
    }
    elements *= dimension;
  }
  return absl::OkStatus();
}

absl::Status CheckChunks(const v1::TableSpec& spec) {
  if (spec.chunk_bytes() % kChunkAlignment != 0 || spec.chunk_bytes() < kMinChunkBytes ||
      spec.chunk_bytes() > kMaxChunkBytes) {
    return Bad(spec, "chunk_bytes", absl::StrCat(spec.chunk_bytes()),
               absl::StrCat("a multiple of ", kChunkAlignment, " in ", kMinChunkBytes, "..",
                            kMaxChunkBytes, ", or 0 for ", kDefaultChunkBytes));
  }
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

template <typename Enum>
absl::Status CheckEnum(const v1::TableSpec& spec, const char* field, bool valid, Enum value,
                       const char* allowed) {
  if (valid) return absl::OkStatus();
  return Bad(spec, field, absl::StrCat(static_cast<int>(value)), allowed);
}

absl::Status FillTypes(v1::TableSpec* spec) {
  if (spec->dtype() == v1::DTYPE_UNSPECIFIED) spec->set_dtype(v1::DTYPE_F32);
  if (spec->gradient_dtype() == v1::DTYPE_UNSPECIFIED) spec->set_gradient_dtype(v1::DTYPE_F32);
  const v1::DType dtype = spec->dtype();
  const v1::DType gradient = spec->gradient_dtype();
  if (spec->dim() > 0) {
    const char* allowed = "1 (f32) for an embedding table";
    absl::Status status = CheckEnum(*spec, "dtype", dtype == v1::DTYPE_F32, dtype, allowed);
    status.Update(CheckEnum(*spec, "gradient_dtype", gradient == v1::DTYPE_F32, gradient, allowed));
    return status;
  }
  absl::Status status =
      CheckEnum(*spec, "dtype", v1::DType_IsValid(dtype), dtype, "1 (f32), 2 (bf16), 3 (f16)");
  status.Update(CheckEnum(*spec, "gradient_dtype",
                          gradient == v1::DTYPE_F32 || gradient == v1::DTYPE_BF16, gradient,
                          "1 (f32), 2 (bf16)"));
  return status;
}

absl::Status FillRowType(v1::TableSpec* spec) {
  const v1::DType dtype = spec->row_dtype();
  if (spec->dim() == 0) {
    absl::Status status = CheckEnum(*spec, "row_dtype", dtype == v1::DTYPE_UNSPECIFIED, dtype,
                                    "0, unless it is an embedding table");
    if (!status.ok()) return status;
  } else if (dtype == v1::DTYPE_UNSPECIFIED) {
    spec->set_row_dtype(v1::DTYPE_F32);
  } else if (!v1::DType_IsValid(dtype)) {
    return CheckEnum(*spec, "row_dtype", false, dtype, "1 (f32), 2 (bf16), 3 (f16)");
  }
  if (spec->stochastic_rounding() && RowType(*spec) == ElementType::kF32) {
    return Bad(*spec, "stochastic_rounding", "true",
               "false, unless row_dtype is 2 (bf16) or 3 (f16)");
  }
  return absl::OkStatus();
}

// Codecs that encode every number: allowed for parameters and for gradients of rows.
bool SaysEach(v1::Codec codec) { return codec > v1::CODEC_NONE && codec <= v1::CODEC_FP8_E5M2; }

absl::Status FillPushCodec(v1::TableSpec* spec) {
  if (spec->push_codec() == v1::CODEC_UNSPECIFIED) spec->set_push_codec(v1::CODEC_NONE);
  const v1::Codec codec = spec->push_codec();
  absl::Status status = CheckEnum(*spec, "push_codec", v1::Codec_IsValid(codec), codec,
                                  "1 (none), 2 (bf16), 3 (f16), 4 (int8), 5 (fp8_e4m3), "
                                  "6 (fp8_e5m2), 7 (sign), 8 (top_k)");
  if (!status.ok() || codec == v1::CODEC_NONE) return status;
  if (spec->dim() > 0 && !SaysEach(codec)) {
    return Bad(
        *spec, "push_codec", CodecName(codec),
        "none, bf16, f16, int8, fp8_e4m3, fp8_e5m2 for an embedding table: other codecs need "
        "memory for the rounding error of each row");
  }
  if (spec->gradient_dtype() != v1::DTYPE_F32) {
    return Bad(*spec, "gradient_dtype", v1::DType_Name(spec->gradient_dtype()),
               absl::StrCat("DTYPE_F32 where push_codec, which is ", CodecName(codec),
                            ", is not none: the codec is given f32"));
  }
  return status;
}

absl::Status FillPullCodec(v1::TableSpec* spec) {
  if (spec->pull_codec() == v1::CODEC_UNSPECIFIED) spec->set_pull_codec(v1::CODEC_NONE);
  const v1::Codec codec = spec->pull_codec();
  // Signs, or a few of many numbers, describe a gradient but not parameters.
  const bool good = codec == v1::CODEC_NONE || SaysEach(codec);
  absl::Status status = CheckEnum(*spec, "pull_codec", good, codec,
                                  "1 (none), 2 (bf16), 3 (f16), 4 (int8), 5 (fp8_e4m3), "
                                  "6 (fp8_e5m2)");
  if (!status.ok() || codec == v1::CODEC_NONE) return status;
  if (spec->dtype() != v1::DTYPE_F32) {
    return Bad(*spec, "dtype", v1::DType_Name(spec->dtype()),
               absl::StrCat("DTYPE_F32 where pull_codec, which is ", CodecName(codec),
                            ", is not none: the codec gives f32"));
  }
  return status;
}

absl::Status FillEnums(v1::TableSpec* spec) {
  if (spec->consistency() == v1::CONSISTENCY_UNSPECIFIED) {
    spec->set_consistency(v1::CONSISTENCY_SYNC);
  }
  if (spec->reduction() == v1::REDUCTION_UNSPECIFIED) spec->set_reduction(v1::REDUCTION_MEAN);
  if (spec->non_finite() == v1::NON_FINITE_UNSPECIFIED) spec->set_non_finite(v1::NON_FINITE_REJECT);
  // proto3 keeps unknown enum values of a newer or faulty peer.
  absl::Status status = FillTypes(spec);
  status.Update(FillRowType(spec));
  status.Update(FillPushCodec(spec));
  status.Update(FillPullCodec(spec));
  status.Update(CheckEnum(*spec, "consistency", v1::Consistency_IsValid(spec->consistency()),
                          spec->consistency(), "1 (sync), 2 (async), 3 (ssp)"));
  status.Update(CheckEnum(*spec, "reduction", v1::Reduction_IsValid(spec->reduction()),
                          spec->reduction(), "1 (sum), 2 (mean)"));
  status.Update(CheckEnum(*spec, "non_finite", v1::NonFinite_IsValid(spec->non_finite()),
                          spec->non_finite(), "1 (reject), 2 (apply), 3 (skip)"));
  if (status.ok() && spec->staleness() > 0 && spec->consistency() != v1::CONSISTENCY_SSP) {
    status = Bad(*spec, "staleness", absl::StrCat(spec->staleness()),
                 "0, unless consistency is 3 (ssp)");
  }
  if (status.ok() && spec->staleness() > kMaxStaleness) {
    status = Bad(*spec, "staleness", absl::StrCat(spec->staleness()),
                 absl::StrCat("0..", kMaxStaleness));
  }
  return status;
}

absl::Status FillInitializer(v1::TableSpec* spec) {
  v1::Initializer* init = spec->mutable_initializer();
  if (init->kind() == v1::Initializer::KIND_UNSPECIFIED) init->set_kind(v1::Initializer::ZEROS);
  if (!v1::Initializer::Kind_IsValid(init->kind())) {
    return Bad(*spec, "initializer.kind", absl::StrCat(static_cast<int>(init->kind())),
               "1 (zeros), 2 (constant), 3 (uniform), 4 (normal)");
  }
  if (!FiniteAsF32(init->a())) {
    return Bad(*spec, "initializer.a", Number(init->a()), "a finite f32 number");
  }
  if (!FiniteAsF32(init->b())) {
    return Bad(*spec, "initializer.b", Number(init->b()), "a finite f32 number");
  }
  // Fields that a kind does not use are cleared, so that they cannot make equal tables differ.
  switch (init->kind()) {
    case v1::Initializer::ZEROS:
      init->clear_a();
      [[fallthrough]];
    case v1::Initializer::CONSTANT:
      init->clear_b();
      init->clear_seed();
      break;
    case v1::Initializer::UNIFORM:
      if (!(init->a() < init->b())) {
        return Bad(*spec, "initializer.b", Number(init->b()),
                   absl::StrCat("more than initializer.a, which is ", Number(init->a()),
                                ", for uniform [a, b)"));
      }
      break;
    case v1::Initializer::NORMAL:
      if (init->b() < 0) {
        return Bad(*spec, "initializer.b", Number(init->b()), "a standard deviation >= 0");
      }
      break;
    default:
      break;
  }
  return absl::OkStatus();
}

// A norm over several chunks is summed between a step's contributions and its commit. Only a sync
// step has such a phase, and only a dense table's chunks are known in advance.
absl::Status CheckStepNorms(const v1::TableSpec& spec) {
  if (!NeedsStepNorms(spec.optimizer())) return absl::OkStatus();
  if (spec.consistency() == v1::CONSISTENCY_SYNC && spec.dim() == 0) return absl::OkStatus();
  const char* what = spec.dim() > 0 ? "an embedding table" : "an async or ssp table";
  if (spec.optimizer().clip_global_norm() > 0) {
    return Bad(spec, "optimizer.clip_global_norm", Number(spec.optimizer().clip_global_norm()),
               absl::StrCat("0 for ", what,
                            ": the norm of a step is known in dense sync tables alone; "
                            "clip_chunk_norm and clip_value work everywhere"));
  }
  return Bad(spec, "optimizer.name", Quoted(spec.optimizer().name()),
             absl::StrCat("another for ", what,
                          ": a trust ratio is known in dense sync tables alone; adamw works "
                          "everywhere"));
}

absl::Status FillOptimizer(v1::TableSpec* spec) {
  const absl::Status status = NormalizeOptimizer(spec->mutable_optimizer());
  if (status.ok()) return CheckStepNorms(*spec);
  return absl::InvalidArgumentError(
      absl::StrCat("table ", Quoted(spec->name()), ": ", std::string(status.message())));
}

absl::Status Differs(const v1::TableSpec& spec, const std::string& field,
                     const std::string& existing, const std::string& wanted) {
  return absl::AlreadyExistsError(absl::StrCat("table ", Quoted(spec.name()), ": ", field, " is ",
                                               existing, " in the existing table and ", wanted,
                                               " in the one asked for"));
}

absl::Status CompareInitializers(const v1::TableSpec& existing, const v1::TableSpec& wanted) {
  const v1::Initializer& a = existing.initializer();
  const v1::Initializer& b = wanted.initializer();
  if (a.kind() != b.kind()) {
    return Differs(wanted, "initializer.kind", v1::Initializer::Kind_Name(a.kind()),
                   v1::Initializer::Kind_Name(b.kind()));
  }
  if (a.a() != b.a()) return Differs(wanted, "initializer.a", Number(a.a()), Number(b.a()));
  if (a.b() != b.b()) return Differs(wanted, "initializer.b", Number(a.b()), Number(b.b()));
  if (a.seed() != b.seed()) {
    return Differs(wanted, "initializer.seed", absl::StrCat(a.seed()), absl::StrCat(b.seed()));
  }
  return absl::OkStatus();
}

absl::Status CompareAdmissions(const v1::TableSpec& existing, const v1::TableSpec& wanted) {
  const std::optional<FieldDifference> difference =
      FirstDifference(existing.admission(), wanted.admission());
  if (!difference) return absl::OkStatus();
  return Differs(wanted, difference->field, difference->first, difference->second);
}

absl::Status CompareEvictions(const v1::TableSpec& existing, const v1::TableSpec& wanted) {
  const std::optional<FieldDifference> difference =
      FirstDifference(existing.eviction(), wanted.eviction());
  if (!difference) return absl::OkStatus();
  return Differs(wanted, difference->field, difference->first, difference->second);
}

absl::Status CompareColdTiers(const v1::TableSpec& existing, const v1::TableSpec& wanted) {
  const std::optional<FieldDifference> difference =
      FirstDifference(existing.cold_tier(), wanted.cold_tier());
  if (!difference) return absl::OkStatus();
  return Differs(wanted, difference->field, difference->first, difference->second);
}

absl::Status CompareOptimizers(const v1::TableSpec& existing, const v1::TableSpec& wanted) {
  const std::optional<FieldDifference> difference =
      FirstDifference(existing.optimizer(), wanted.optimizer());
  if (!difference) return absl::OkStatus();
  return Differs(wanted, difference->field, difference->first, difference->second);
}

// f32 for an unknown type, so that sizes are valid for any view. Also for an unset type, which a
// table has that was stored before gradients had a type.
ElementType TypeOf(v1::DType dtype) {
  const bool known = v1::DType_IsValid(dtype) && dtype != v1::DTYPE_UNSPECIFIED;
  return known ? static_cast<ElementType>(dtype) : ElementType::kF32;
}

absl::Status CompareTypes(const v1::TableSpec& existing, const v1::TableSpec& wanted) {
  if (existing.dtype() != wanted.dtype()) {
    return Differs(wanted, "dtype", v1::DType_Name(existing.dtype()),
                   v1::DType_Name(wanted.dtype()));
  }
  if (RowType(existing) != RowType(wanted)) {
    return Differs(wanted, "row_dtype", v1::DType_Name(existing.row_dtype()),
                   v1::DType_Name(wanted.row_dtype()));
  }
  if (existing.stochastic_rounding() != wanted.stochastic_rounding()) {
    return Differs(wanted, "stochastic_rounding", existing.stochastic_rounding() ? "true" : "false",
                   wanted.stochastic_rounding() ? "true" : "false");
  }
  if (GradientType(existing) != GradientType(wanted)) {
    return Differs(wanted, "gradient_dtype", v1::DType_Name(existing.gradient_dtype()),
                   v1::DType_Name(wanted.gradient_dtype()));
  }
  if (CodecName(existing.push_codec()) != CodecName(wanted.push_codec())) {
    return Differs(wanted, "push_codec", CodecName(existing.push_codec()),
                   CodecName(wanted.push_codec()));
  }
  if (CodecName(existing.pull_codec()) != CodecName(wanted.pull_codec())) {
    return Differs(wanted, "pull_codec", CodecName(existing.pull_codec()),
                   CodecName(wanted.pull_codec()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<v1::TableSpec> NormalizeTableSpec(v1::TableSpec spec) {
  if (spec.chunk_bytes() == 0) spec.set_chunk_bytes(kDefaultChunkBytes);
  absl::Status status = CheckNames(spec);
  if (status.ok()) status = CheckShape(spec);
  if (status.ok()) status = FillEnums(&spec);
  if (status.ok()) status = FillInitializer(&spec);
  if (status.ok()) status = FillOptimizer(&spec);
  if (status.ok()) status = NormalizeAdmission(&spec);
  if (status.ok()) status = NormalizeEviction(&spec);
  if (status.ok()) status = NormalizeColdTier(&spec);
  if (status.ok()) status = CheckChunks(spec);
  if (!status.ok()) return status;
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
  if (spec.dim() > 0 && !SaysEach(spec.push_codec())) return ElementType::kF32;
  return HasPushCodec(spec) ? static_cast<ElementType>(spec.push_codec()) : GradientType(spec);
}

bool HasPullCodec(const v1::TableSpec& spec) {
  // For any view: decoding gives as many f32 as there are elements.
  return SaysEach(spec.pull_codec()) && ParameterType(spec) == ElementType::kF32;
}

ElementType PullType(const v1::TableSpec& spec) {
  return HasPullCodec(spec) ? static_cast<ElementType>(spec.pull_codec()) : ParameterType(spec);
}

std::string CodecName(v1::Codec codec) {
  for (const NamedCodec& named : kCodecs) {
    if (named.codec == codec) return named.name;
  }
  return "none";
}

v1::Codec CodecNamed(std::string_view name) {
  for (const NamedCodec& named : kCodecs) {
    if (name == named.name) return named.codec;
  }
  return v1::CODEC_UNSPECIFIED;
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
  if (existing.name() != wanted.name()) {
    return Differs(wanted, "name", Quoted(existing.name()), Quoted(wanted.name()));
  }
  if (existing.job() != wanted.job()) {
    return Differs(wanted, "job", Quoted(existing.job()), Quoted(wanted.job()));
  }
  if (ShapeString(existing) != ShapeString(wanted)) {
    return Differs(wanted, "shape", ShapeString(existing), ShapeString(wanted));
  }
  if (existing.dim() != wanted.dim()) {
    return Differs(wanted, "dim", absl::StrCat(existing.dim()), absl::StrCat(wanted.dim()));
  }
  if (const absl::Status status = CompareTypes(existing, wanted); !status.ok()) return status;
  if (existing.consistency() != wanted.consistency()) {
    return Differs(wanted, "consistency", v1::Consistency_Name(existing.consistency()),
                   v1::Consistency_Name(wanted.consistency()));
  }
  if (existing.staleness() != wanted.staleness()) {
    return Differs(wanted, "staleness", absl::StrCat(existing.staleness()),
                   absl::StrCat(wanted.staleness()));
  }
  if (existing.reduction() != wanted.reduction()) {
    return Differs(wanted, "reduction", v1::Reduction_Name(existing.reduction()),
                   v1::Reduction_Name(wanted.reduction()));
  }
  if (existing.non_finite() != wanted.non_finite()) {
    return Differs(wanted, "non_finite", v1::NonFinite_Name(existing.non_finite()),
                   v1::NonFinite_Name(wanted.non_finite()));
  }
  absl::Status status = CompareInitializers(existing, wanted);
  if (status.ok()) status = CompareOptimizers(existing, wanted);
  if (status.ok()) status = CompareAdmissions(existing, wanted);
  if (status.ok()) status = CompareEvictions(existing, wanted);
  if (status.ok()) status = CompareColdTiers(existing, wanted);
  if (status.ok() && existing.chunk_bytes() != wanted.chunk_bytes()) {
    return Differs(wanted, "chunk_bytes", absl::StrCat(existing.chunk_bytes()),
                   absl::StrCat(wanted.chunk_bytes()));
  }
  return status;
}

std::string ShapeString(const v1::TableSpec& spec) {
  return absl::StrCat("[", absl::StrJoin(spec.shape(), ", "), "]");
}

}  // namespace verbena
