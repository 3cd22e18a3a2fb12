#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace shardrun::test {

struct FieldLayout {
  std::string name;
  std::size_t offset = 0;
  std::size_t size = 0;
  std::string type;

  bool operator==(const FieldLayout&) const = default;
};

/// What a release promises: the fields of every struct, in order, and the value of every constant.
struct AbiLayout {
  std::map<std::string, std::vector<FieldLayout>> structs;
  std::map<std::string, std::string> constants;
};

/// The layout that this compiler gives the headers.
[[nodiscard]] AbiLayout compiled_layout();

/// Convert a layout to the text of a golden file, and back.
[[nodiscard]] std::string to_string(const AbiLayout& layout);
[[nodiscard]] AbiLayout parse_layout(const std::string& text);

}  // namespace shardrun::test
