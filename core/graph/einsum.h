#pragma once

#include <string>
#include <string_view>

namespace shardrun::graph {

/// A contraction of two tensors, such as "bqhd,bkhd->bhqk". Letters are indices; letters that the result lacks are
/// summed.
struct Einsum {
  std::string a;
  std::string b;
  std::string result;
};

/// Parses the text; skips spaces. Throws Error{shape_mismatch}, which says what is wrong with the text.
[[nodiscard]] Einsum parse_einsum(std::string_view text);

/// The letters that the result lacks, in the order of the operands.
[[nodiscard]] std::string summed_letters(const Einsum& einsum);

}  // namespace shardrun::graph
