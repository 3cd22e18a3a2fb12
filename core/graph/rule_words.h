#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/window.h"

// The words of a rule's text (rule_text.h), before they mean factors.

namespace shardrun::graph {

using Words = std::vector<std::string>;

/// A dimension of an operand that is written as a window of its factor.
struct WrittenWindow {
  std::size_t operand;
  std::string factor;
  Window window;
};

/// A rule's words, as they are written. Those of windows have their factor's name alone.
struct WrittenRule {
  std::vector<Words> operands;
  std::vector<WrittenWindow> windows;
  std::vector<Words> results;
  std::vector<Words> classes;  ///< each begins with its class
};

/// Throws Error{shape_mismatch} for a text of another form.
[[nodiscard]] WrittenRule read_rule(std::string_view text);

/// Whether a word stands for any number of dimensions: "b*".
[[nodiscard]] bool is_group(std::string_view word);

/// Throws Error{shape_mismatch}: "the rule 'TEXT' WHY".
[[noreturn]] void refuse_rule(std::string_view text, const std::string& why);

}  // namespace shardrun::graph
