#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "core/conformance/conformance.h"
#include "core/conformance/kinds.h"

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

/// Writes a text to the parent process as one line.
void write_line(int descriptor, std::string line) {
  std::replace(line.begin(), line.end(), '\n', ' ');
  line = line.substr(0, 3000) + '\n';
  if (write(descriptor, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
    std::_Exit(1);
  }
}

/// The kinds of plugins whose cases are linked into this program. Static objects add them.
std::vector<KindOfCases>& kinds() {
  static std::vector<KindOfCases> known;
  return known;
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

RegisterKind::RegisterKind(const KindOfCases& kind) { kinds().push_back(kind); }

const KindOfCases& cases_of(plugins::PluginKind kind) {
  const auto found = std::ranges::find(kinds(), kind, &KindOfCases::kind);
  if (found == kinds().end()) {
    throw Error(ErrorCode::usage, fmt::format("this program has no cases for a plugin of kind {}", to_string(kind)));
  }
  return *found;
}

void report_note(int descriptor, const std::string& note) { write_line(descriptor, note_mark + note); }

void report(int descriptor, std::string problem) {
  std::replace(problem.begin(), problem.end(), note_mark, ' ');
  write_line(descriptor, std::move(problem));
}

int run_member(std::span<const std::string> words) {
  const MemberWords parsed = parse_words(words);
  // This process dies with its parent, and leaves no core file when it crashes.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit none = {.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &none);
  if (getppid() != parsed.parent) {
    return 1;
  }
  Store store(parsed.store);
  std::string before = opening_words(parsed.kind);
  try {
    cases_of(parsed.kind).go_through(store, parsed, before);
  } catch (const std::exception& failure) {
    const auto* const error = dynamic_cast<const Error*>(&failure);
    const bool is_consequence = store.aborted() && error != nullptr &&
                                (error->code() == ErrorCode::aborted || error->code() == ErrorCode::peer_lost);
    store.abort();
    report(parsed.report, is_consequence ? other_failed : before + failure.what());
    std::_Exit(1);
  }
  return 0;
}

}  // namespace shardrun::conformance
