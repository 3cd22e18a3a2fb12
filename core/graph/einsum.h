#pragma once

#include <string>
#include <string_view>

namespace shardrun::graph {

/// A contraction of two tensors, such as "bqhd,bkhd->bhqk". Each letter is an index. Letters that the result lacks are
/// summed over.
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
