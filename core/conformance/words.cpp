#include "core/conformance/words.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

#include "core/base/error.h"

namespace shardrun::conformance {
namespace {

constexpr std::size_t fixed_words = 9;
constexpr std::string_view started_by_check = "the processes of a check are started by the check";

template <class Number>
Number number(std::string_view text) {
  Number value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size()) {
    throw Error(ErrorCode::usage, fmt::format("'{}' is no number; {}", text, started_by_check));
  }
  return value;
}

std::vector<std::size_t> numbers(std::string_view text) {
  std::vector<std::size_t> values;
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    values.push_back(number<std::size_t>(text.substr(0, comma)));
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
  }
  return values;
}

plugins::PluginKind kind(std::string_view text) {
  for (const plugins::PluginKind each : {plugins::PluginKind::strategy, plugins::PluginKind::transport,
                                         plugins::PluginKind::model, plugins::PluginKind::engine}) {
    if (text == to_string(each)) {
      return each;
    }
  }
  throw Error(ErrorCode::usage, fmt::format("'{}' is no kind of plugin; {}", text, started_by_check));
}

}  // namespace

std::string opening_words(plugins::PluginKind kind) { return fmt::format("opening the {}: ", to_string(kind)); }

std::vector<std::string> to_words(const MemberWords& words) {
  std::string cases;
  for (const std::size_t index : words.cases) {
    cases += fmt::format("{}{}", cases.empty() ? "" : ",", index);
  }
  std::vector<std::string> texts = {fmt::format("{}", words.parent),
                                    fmt::format("{}", words.store),
                                    fmt::format("{}", words.report),
                                    fmt::format("{}", words.rank),
                                    fmt::format("{}", words.ranks),
                                    std::string(to_string(words.kind)),
                                    words.plugin,
                                    cases,
                                    fmt::format("{}", words.settings.size())};
  texts.insert(texts.end(), words.settings.begin(), words.settings.end());
  for (const std::filesystem::path& directory : words.directories) {
    texts.push_back(directory.string());
  }
  return texts;
}

MemberWords parse_words(std::span<const std::string> words) {
  if (words.size() < fixed_words) {
    throw Error(ErrorCode::usage, std::string(started_by_check));
  }
  const auto settings = number<std::size_t>(words[8]);
  if (words.size() - fixed_words < settings) {
    throw Error(ErrorCode::usage, std::string(started_by_check));
  }
  const auto directories = words.begin() + static_cast<std::ptrdiff_t>(fixed_words + settings);
  return {.parent = number<pid_t>(words[0]),
          .store = number<int>(words[1]),
          .report = number<int>(words[2]),
          .rank = number<std::uint32_t>(words[3]),
          .ranks = number<std::uint32_t>(words[4]),
          .kind = kind(words[5]),
          .plugin = words[6],
          .cases = numbers(words[7]),
          .settings = {words.begin() + fixed_words, directories},
          .directories = {directories, words.end()}};
}

}  // namespace shardrun::conformance
