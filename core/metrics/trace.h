#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/metrics/jsonl.h"

namespace shardrun::metrics {

/// Arguments of spans that are one message's: what was sent, and what was received. Their text is the same at both
/// ends.
inline constexpr std::string_view message_sent = "sends";
inline constexpr std::string_view message_received = "receives";

/// Something that took time, in a row of its process. Times are nanoseconds of one clock for all processes.
struct TraceSpan {
  std::int64_t row = 1;
  std::string_view name;
  std::string_view category;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::span<const JsonField> arguments;
};

/// What a process did when, in the Trace Event Format: JSON that Perfetto (ui.perfetto.dev) and chrome://tracing open,
/// with an event in each line. Processes and rows are numbered from 1: 0 means the idle process to some readers.
class Trace {
 public:
  Trace(std::int64_t process, std::string_view name);

  /// Readers show the rows of a process in the order of their numbers.
  void name_row(std::int64_t row, std::string_view name);
  /// REQUIRES: of two spans of a row that overlap, one lies within the other.
  void add(const TraceSpan& span);

  /// The whole file.
  [[nodiscard]] std::string text() const;

 private:
  void begin_event(char phase, std::int64_t row, std::string_view name);
  void add_metadata(std::string_view what, std::int64_t row, const JsonField& field);

  std::int64_t process_;
  std::string events_;
};

/// Adds to `all`, empty or the text of a trace, the events of another. Throws Error{io} where `other` is no text of a
/// Trace. `name`: of the other, for the message.
void join_trace(std::string& all, std::string_view other, std::string_view name);

/// A joined trace with an arrow (flow) from where each message was sent to where it was received. A receiver may have
/// asked for it long before: its span begins with the sender's at the earliest. Where one end is missing, or the
/// message arrived before it was sent, as on two machines' clocks, there is no arrow.
[[nodiscard]] std::string with_arrows(std::string_view trace);

}  // namespace shardrun::metrics
