#include "core/metrics/trace.h"

#include <fmt/format.h>

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

/// Microseconds, exactly: as a double, nanoseconds since the machine's start would lose their last digits.
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
