#include "core/metrics/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <variant>

#include "core/base/error.h"
#include "core/metrics/json_text.h"

namespace shardrun::metrics {
namespace {

constexpr std::string_view head = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
constexpr std::string_view tail = "\n]}\n";
constexpr std::string_view between = ",\n";

void append_arguments(std::string& text, std::span<const JsonField> arguments) {
  text += ",\"args\":{";
  for (std::size_t a = 0; a < arguments.size(); ++a) {
    text += a == 0 ? "" : ",";
    append_json(text, arguments[a].name);
    text += ':';
    std::visit([&](auto value) { append_json(text, value); }, arguments[a].value);
  }
  text += "}}";
}

/// Microseconds as exact text: as a double, nanoseconds since the machine's start would lose their last digits.
std::string microseconds(std::int64_t nanoseconds) {
  return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000);
}

}  // namespace

Trace::Trace(std::int64_t process, std::string_view name) : process_(process) {
  add_metadata("process_name", 0, {"name", name});
  add_metadata("process_sort_index", 0, {"sort_index", process});
}

void Trace::begin_event(char phase, std::int64_t row, std::string_view name) {
  events_ += events_.empty() ? "" : between;
  events_ += fmt::format("{{\"ph\":\"{}\",\"pid\":{},\"tid\":{},\"name\":", phase, process_, row);
  append_json(events_, name);
}

void Trace::add_metadata(std::string_view what, std::int64_t row, const JsonField& field) {
  begin_event('M', row, what);
  append_arguments(events_, {&field, 1});
}

void Trace::name_row(std::int64_t row, std::string_view name) {
  add_metadata("thread_name", row, {"name", name});
  add_metadata("thread_sort_index", row, {"sort_index", row});
}

void Trace::add(const TraceSpan& span) {
  begin_event('X', span.row, span.name);
  events_ += ",\"cat\":";
  append_json(events_, span.category);
  events_ += fmt::format(",\"ts\":{},\"dur\":{}", microseconds(span.begin), microseconds(span.end - span.begin));
  append_arguments(events_, span.arguments);
}

std::string Trace::text() const { return fmt::format("{}{}{}", head, events_, tail); }

namespace {

/// The text of a line between `key` and `end`. `key` contains characters that cannot occur within a JSON string.
std::string_view field(std::string_view line, std::string_view key, char end) {
  const std::size_t begin = line.find(key);
  if (begin == std::string_view::npos) {
    return {};
  }
  const std::string_view rest = line.substr(begin + key.size());
  return rest.substr(0, rest.find(end));
}

/// The nanoseconds of a number that microseconds() wrote.
std::int64_t nanoseconds(std::string_view number) {
  std::string digits(number);
  std::erase(digits, '.');
  return std::stoll(digits);
}

/// A line with a span that is one end of a message.
struct End {
  std::string_view process;
  std::string_view row;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

End end_of(std::string_view line) {
  const std::int64_t begin = nanoseconds(field(line, "\"ts\":", ','));
  return {field(line, "\"pid\":", ','), field(line, "\"tid\":", ','), begin,
          begin + nanoseconds(field(line, "\"dur\":", ','))};
}

template <typename Visit>
void for_each_line(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const std::size_t size = std::min(text.find('\n'), text.size() - 1) + 1;
    visit(text.substr(0, size));
    text.remove_prefix(size);
  }
}

std::string argument(std::string_view name) { return fmt::format("\"{}\":\"", name); }

/// A line with its span's begin and duration replaced.
std::string at_time(std::string_view line, std::int64_t begin, std::int64_t end) {
  constexpr std::string_view key = ",\"ts\":";
  const std::size_t from = line.find(key);
  return fmt::format("{}{}{},\"dur\":{}{}", line.substr(0, from), key, microseconds(begin), microseconds(end - begin),
                     line.substr(line.find(",\"args\"", from)));
}

std::string arrow(std::int64_t number, const End& sent, const End& received) {
  constexpr const char* event = R"({{"ph":"{}"{},"pid":{},"tid":{},"name":"message","cat":"message","id":{},"ts":{}}})";
  // The arrow ends 1 ns before the receiving span ends, because readers count the span as over at its end.
  return fmt::format(
      "{}{}{}{}", between, fmt::format(event, 's', "", sent.process, sent.row, number, microseconds(sent.begin)),
      between,
      fmt::format(event, 'f', ",\"bp\":\"e\"", received.process, received.row, number, microseconds(received.end - 1)));
}

}  // namespace

std::string with_arrows(std::string_view trace) {
  const std::string sends = argument(message_sent);
  const std::string receives = argument(message_received);
  std::unordered_map<std::string_view, End> sent;
  for_each_line(trace, [&](std::string_view line) {
    if (const std::string_view message = field(line, sends, '"'); !message.empty()) {
      sent.emplace(message, end_of(line));
    }
  });
  std::string all;
  std::string arrows;
  std::int64_t number = 0;
  for_each_line(trace.substr(0, trace.size() - tail.size()), [&](std::string_view line) {
    const std::string_view message = field(line, receives, '"');
    const auto from = message.empty() ? sent.end() : sent.find(message);
    if (from == sent.end()) {
      all += line;
      return;
    }
    End received = end_of(line);
    if (received.end <= from->second.begin) {
      all += line;
      return;
    }
    received.begin = std::max(received.begin, from->second.begin);
    all += at_time(line, received.begin, received.end);
    arrows += arrow(++number, from->second, received);
  });
  return fmt::format("{}{}{}", all, arrows, tail);
}

void join_trace(std::string& all, std::string_view other, std::string_view name) {
  if (!other.starts_with(head) || !other.ends_with(tail) || other.size() < head.size() + tail.size()) {
    throw Error(ErrorCode::io, fmt::format("{}: this is no trace that a rank has written", name));
  }
  if (all.empty()) {
    all = other;
    return;
  }
  all.resize(all.size() - tail.size());
  all += between;
  all += other.substr(head.size());
}

}  // namespace shardrun::metrics
