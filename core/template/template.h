#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace shardrun::templates {

/// Limits for one rendering. A rendering that exceeds one of them throws Error{data}.
struct Limits {
  std::int64_t steps = 20'000'000;                  ///< operations; one with a long text counts as several
  std::size_t bytes = std::size_t{256} << 20U;      ///< memory of all values
  std::size_t text_bytes = std::size_t{32} << 20U;  ///< size of one text, and of the result
  std::int64_t depth = 500;                         ///< nesting of calls and values
};

struct Node;

/// A chat template. Supports the part of Jinja that chat templates use, with the settings of transformers' environment
/// (trim_blocks, lstrip_blocks, `break` and `continue`, `generation` blocks, Python's JSON). Values behave as Python's
/// do. Anything unsupported throws an error that names it. A template can read only its context and the local time, and
/// can change nothing outside of the rendering.
class Template {
 public:
  /// Parses a template. `source` names it in messages. Throws Error{data}; for a syntax error, with line and column.
  [[nodiscard]] static Template parse(std::string_view text, std::string source);

  /// Renders the template with these variables. Throws Error{data} with line and column, also if the template calls
  /// raise_exception().
  [[nodiscard]] std::string render(const boost::json::object& context, const Limits& limits = {}) const;

 private:
  Template(std::shared_ptr<const Node> root, std::string source);

  std::shared_ptr<const Node> root_;
  std::string source_;
};

}  // namespace shardrun::templates
