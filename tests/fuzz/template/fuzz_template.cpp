// Any chat template, over one conversation. Nothing but shardrun::Error may come out, which names the template. What is
// rendered is within the limits, is UTF-8, and is the same each time.

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

const boost::json::object& conversation() {
  static const boost::json::value context = boost::json::parse(
      R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<|x|> Gr\u00fc\u00dfe \ud83d\ude00\n"},
          {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5, true]}}}]}],
          "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
          "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true, "n": -7, "r": 1e300, "e": ""})");
  return context.get_object();
}

std::optional<std::string> rendered(const templates::Template& made) {
  try {
    return made.render(conversation(), fuzzed_limits);
  } catch (const Error& error) {
    require_rendered(error.message().find("fuzz.jinja, line ") == 0, "a message does not name the place");
    return std::nullopt;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const templates::Template made = templates::Template::parse(input, "fuzz.jinja");
    const std::optional<std::string> text = rendered(made);
    require_rendered(!text || (text->size() <= fuzzed_limits.text_bytes && !first_invalid_utf8(*text)),
                     "a text beyond the limit, or not UTF-8");
    require_rendered(input.find("strftime_now") != std::string_view::npos || text == rendered(made),
                     "another text the second time");
  } catch (const Error& error) {
    require_rendered(error.message().find("fuzz.jinja") == 0, "a message does not name the template");
  }
  return 0;
}
