#include "core/template/template.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/utf8.h"
#include "core/template/evaluator.h"
#include "core/template/syntax.h"
#include "core/template/text.h"

namespace shardrun::templates {

Template::Template(std::shared_ptr<const Node> root, std::string source)
    : root_(std::move(root)), source_(std::move(source)) {}

namespace {

constexpr std::size_t most_template_bytes = std::size_t{1} << 20U;

/// Shortens a message and puts it in one line, because a message can quote long texts of the template.
std::string bounded(std::string_view message) {
  constexpr std::size_t longest = 1000;
  const std::size_t end = offset_of(message, longest);
  return printable(message.substr(0, end)) + (end < message.size() ? "…" : "");
}

}  // namespace

Template Template::parse(std::string_view text, std::string source) {
  if (text.size() > most_template_bytes) {
    throw Error(ErrorCode::data, fmt::format("{} has {} bytes: a chat template has at most {}", source, text.size(),
                                             most_template_bytes));
  }
  if (const std::optional<std::size_t> at = first_invalid_utf8(text)) {
    throw Error(ErrorCode::data, fmt::format("{} is not UTF-8 at byte {}", source, *at));
  }
  try {
    return {parse_tree(text), std::move(source)};
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}, {}", source, bounded(error.message())));
  }
}

std::string Template::render(const boost::json::object& context, const Limits& limits) const {
  Evaluator evaluator(limits);
  try {
    return evaluator.render(*root_, context);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}, line {}, column {}: {}", source_, evaluator.at().line,
                                          evaluator.at().column, bounded(error.message())));
  }
}

}  // namespace shardrun::templates
