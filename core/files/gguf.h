#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/files/steady_file.h"

// The GGUF format, versions 2 and 3: metadata, a table of tensors, and the tensors' blocks of numbers. All numbers are
// little-endian.
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

namespace shardrun::files {

/// The tensor types that can be read, with the format's numbers.
enum class GgufType : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  bf16 = 30,
};

/// How a type stores a tensor: as blocks, each with the same number of consecutive elements of a row.
struct GgufBlock {
  GgufType type;
  const char* name;      ///< in the format: "Q4_K"
  std::size_t elements;  ///< elements per block
  std::size_t bytes;     ///< bytes per block
};

[[nodiscard]] const GgufBlock& block_of(GgufType type) noexcept;

struct GgufTensor {
  std::string name;
  GgufType type = GgufType::f32;
  std::vector<std::int64_t> shape;  ///< row-major; the format stores these dimensions in reverse order
  std::uint64_t offset = 0;         ///< in bytes from the start of the file
};

/// The number of elements of a tensor.
[[nodiscard]] std::int64_t elements_of(const GgufTensor& tensor) noexcept;

/// A value of the metadata. Type float is kept separate from double, so that it can be printed with fewer digits. An
/// array of booleans becomes an array of integers.
using GgufValue = std::variant<bool, std::int64_t, float, double, std::string, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<std::string>>;

struct GgufContents {
  std::map<std::string, GgufValue, std::less<>> metadata;
  std::vector<GgufTensor> tensors;

  // These functions return a value of the metadata; nothing if the key is missing. They throw Error{data} if the value
  // has another type. `source` names the file in messages.
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, std::string_view source) const {
    return copy_of(find<std::int64_t>(key, source, "a whole number"));
  }
  [[nodiscard]] std::optional<bool> flag(std::string_view key, std::string_view source) const {
    return copy_of(find<bool>(key, source, "true or false"));
  }
  [[nodiscard]] std::optional<std::string> text(std::string_view key, std::string_view source) const {
    return copy_of(find<std::string>(key, source, "a text"));
  }
  /// Returns an array; null if the key is missing. Throws Error{data} for another type.
  template <typename Element>
  [[nodiscard]] const std::vector<Element>* list(std::string_view key, std::string_view source) const {
    return find<std::vector<Element>>(key, source, "an array of another type");
  }

 private:
  template <typename Value>
  const Value* find(std::string_view key, std::string_view source, std::string_view expected) const {
    const auto found = metadata.find(key);
    if (found == metadata.end()) {
      return nullptr;
    }
    const auto* const value = std::get_if<Value>(&found->second);
    if (value == nullptr) {
      refuse_type(key, source, expected);
    }
    return value;
  }
  template <typename Value>
  static std::optional<Value> copy_of(const Value* value) {
    return value != nullptr ? std::optional(*value) : std::nullopt;
  }
  [[noreturn]] static void refuse_type(std::string_view key, std::string_view source, std::string_view expected);
};

/// Reads the metadata and the table of tensors, but no tensor. Checks every count and size against the file's size
/// before allocating memory. `read` copies bytes of the file from an offset on; `source` names the file in messages.
/// Throws Error{data}, and what `read` throws.
[[nodiscard]] GgufContents parse_gguf(std::size_t size,
                                      const std::function<void(std::size_t offset, std::span<std::byte> to)>& read,
                                      std::string_view source);
[[nodiscard]] GgufContents parse_gguf(const SteadyFile& file);

/// Whether the path is a file whose name ends in .gguf or whose content begins with the format's magic.
[[nodiscard]] bool is_gguf(const std::filesystem::path& path);

}  // namespace shardrun::files
