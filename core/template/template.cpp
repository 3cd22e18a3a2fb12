#include "core/template/template.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/template/evaluator.h"
#include "core/template/syntax.h"

namespace shardrun::templates {

Template::Template(std::shared_ptr<const Node> root, std::string source)
    : root_(std::move(root)), source_(std::move(source)) {}

Template Template::parse(std::string_view text, std::string source) {
  if (const std::optional<std::size_t> at = first_invalid_utf8(text)) {
    throw Error(ErrorCode::data, fmt::format("{} is not UTF-8 at byte {}", source, *at));
  }
  try {
    return {parse_tree(text), std::move(source)};
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}, {}", source, error.message()));
  }
}

std::string Template::render(const boost::json::object& context, const Limits& limits) const {
  Evaluator evaluator(limits);
  try {
    return evaluator.render(*root_, context);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}, line {}, column {}: {}", source_, evaluator.at().line,
                                          evaluator.at().column, error.message()));
  }
}

}  // namespace shardrun::templates
