#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plugins/loader/plugin.h"

namespace shardrun::conformance {

/// What a rank is told on its command line.
struct RankWords {
  pid_t parent = 0;
  int store = -1;   ///< descriptor
  int report = -1;  ///< descriptor that takes a line a case: empty, or what went wrong
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::string transport;
  std::vector<std::size_t> cases;
  plugins::Directories directories;
};

[[nodiscard]] std::vector<std::string> to_words(const RankWords& words);
/// Throws Error{usage} for words that to_words never writes.
[[nodiscard]] RankWords parse_words(std::span<const std::string> words);

}  // namespace shardrun::conformance
