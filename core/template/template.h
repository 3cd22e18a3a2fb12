#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace shardrun::templates {

/// Limits of rendering. Rendering that exceeds one of them stops with an error.
struct Limits {
  std::int64_t steps = 20'000'000;                  ///< operations; long texts count as several
  std::size_t bytes = std::size_t{256} << 20U;      ///< of all values that are made
  std::size_t text_bytes = std::size_t{32} << 20U;  ///< of one text, and of what is rendered
  std::int64_t depth = 500;                         ///< of calls and values within each other
};

struct Node;

/// A chat template: the part of Jinja that such templates use, with the settings of transformers' environment
/// (trim_blocks, lstrip_blocks, `break` and `continue`, `generation` blocks, Python's JSON). Values and texts are as
/// Python's. What is not known is refused by its name. It reads nothing but its context, and changes nothing.
class Template {
 public:
  /// `source` names the template in messages. Throws Error{data} with line and column.
  [[nodiscard]] static Template parse(std::string_view text, std::string source);

  /// Throws Error{data} with line and column, also where the template itself refuses by raise_exception().
  [[nodiscard]] std::string render(const boost::json::object& context, const Limits& limits = {}) const;

 private:
  Template(std::shared_ptr<const Node> root, std::string source);

  std::shared_ptr<const Node> root_;
  std::string source_;
};

}  // namespace shardrun::templates
