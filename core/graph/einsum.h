#pragma once

#include <string>
#include <string_view>

namespace shardrun::graph {

/// A contraction of two tensors: "bqhd,bkhd->bhqk". A letter is an index; those that the result lacks are summed over.
struct Einsum {
  std::string a;
  std::string b;
  std::string result;
};

/// Throws Error{shape_mismatch} that says what is wrong with the text. Spaces are skipped.
[[nodiscard]] Einsum parse_einsum(std::string_view text);

/// The letters that the result lacks, in the order of the operands.
[[nodiscard]] std::string summed_letters(const Einsum& einsum);

}  // namespace shardrun::graph
