// Renders any chat template with one conversation. If the input's first line is a JSON list of messages, it is the
// conversation, and the template is the rest. Nothing but shardrun::Error may be thrown, and it names the template. The
// result is within the limits, is UTF-8, and is the same each time.

#include <algorithm>
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/template/template.h"

using namespace shardrun;

namespace {

constexpr templates::Limits fuzzed_limits{
    .steps = 100'000, .bytes = std::size_t{16} << 20U, .text_bytes = std::size_t{1} << 20U, .depth = 300};

void require_rendered(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "%s\n", what);
    std::abort();
  }
}

boost::json::object conversation() {
  boost::json::value context = boost::json::parse(
      R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<|x|> Gr\u00fc\u00dfe \ud83d\ude00\n"},
          {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5, true]}}}]}],
          "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
          "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true, "n": -7, "r": 1e300, "e": ""})");
  return context.get_object();
}

std::optional<std::string> rendered(const templates::Template& made, const boost::json::object& context) {
  try {
    return made.render(context, fuzzed_limits);
  } catch (const Error& error) {
    require_rendered(error.message().find("fuzz.jinja, line ") == 0, "a message does not name the place");
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  boost::json::object context = conversation();
  const std::string_view line = input.substr(0, input.find('\n'));
  boost::system::error_code fault;
  const boost::json::value messages = line.starts_with('[') ? boost::json::parse(line, fault) : boost::json::value();
  if (!fault && messages.is_array()) {
    context["messages"] = messages;
    input.remove_prefix(std::min(line.size() + 1, input.size()));
  }
  try {
    const templates::Template made = templates::Template::parse(input, "fuzz.jinja");
    const std::optional<std::string> text = rendered(made, context);
    require_rendered(!text || (text->size() <= fuzzed_limits.text_bytes && !first_invalid_utf8(*text)),
                     "a text beyond the limit, or not UTF-8");
    require_rendered(input.find("strftime_now") != std::string_view::npos || text == rendered(made, context),
                     "another text the second time");
  } catch (const Error& error) {
    require_rendered(error.message().find("fuzz.jinja") == 0, "a message does not name the template");
  }
  return 0;
}
