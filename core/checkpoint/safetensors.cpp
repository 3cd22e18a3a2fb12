#include "core/checkpoint/safetensors.h"

#include <algorithm>
#include <array>

namespace shardrun::checkpoint {
namespace {

struct Known {
  DType dtype;
  const char* name;
  std::size_t bytes;
};

/// Names and sizes of element types, in the order of DType.
constexpr std::array known_dtypes = {
    Known{DType::boolean, "BOOL", 1},    Known{DType::u8, "U8", 1},           Known{DType::i8, "I8", 1},
    Known{DType::f8_e5m2, "F8_E5M2", 1}, Known{DType::f8_e4m3, "F8_E4M3", 1}, Known{DType::i16, "I16", 2},
    Known{DType::u16, "U16", 2},         Known{DType::f16, "F16", 2},         Known{DType::bf16, "BF16", 2},
    Known{DType::i32, "I32", 4},         Known{DType::u32, "U32", 4},         Known{DType::f32, "F32", 4},
    Known{DType::f64, "F64", 8},         Known{DType::i64, "I64", 8},         Known{DType::u64, "U64", 8},
};

static_assert(
    [] {
      for (std::size_t i = 0; i < known_dtypes.size(); ++i) {
        if (static_cast<std::size_t>(known_dtypes[i].dtype) != i) {
          return false;
        }
      }
      return true;
    }(),
    "the table is indexed by DType");

}  // namespace

std::size_t element_bytes(DType dtype) noexcept { return known_dtypes[static_cast<std::size_t>(dtype)].bytes; }

const char* to_string(DType dtype) noexcept { return known_dtypes[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> dtype_of(std::string_view name) noexcept {
  const auto* const found =
      std::find_if(known_dtypes.begin(), known_dtypes.end(), [&](const Known& known) { return known.name == name; });
  return found == known_dtypes.end() ? std::nullopt : std::optional(found->dtype);
}

std::optional<std::uint64_t> tensor_bytes(const TensorInfo& info) noexcept {
  auto bytes = static_cast<std::int64_t>(element_bytes(info.dtype));
  for (const std::int64_t size : info.shape) {
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes)) {
      return std::nullopt;
    }
  }
  return static_cast<std::uint64_t>(bytes);
}

}  // namespace shardrun::checkpoint
