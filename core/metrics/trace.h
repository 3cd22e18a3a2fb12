#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/metrics/jsonl.h"

namespace shardrun::metrics {

/// Names of the arguments of spans that send or receive a message. Their text is the same at both ends of a message.
inline constexpr std::string_view message_sent = "sends";
inline constexpr std::string_view message_received = "receives";

/// A span of time in a row of a process. Times are nanoseconds of one clock for all processes.
struct TraceSpan {
  std::int64_t row = 1;
  std::string_view name;
  std::string_view category;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::span<const JsonField> arguments;
};

/// A process's activities over time, in the Trace Event Format: JSON for Perfetto (ui.perfetto.dev) and
/// chrome://tracing, one event per line. Processes and rows are numbered from 1, because some readers take 0 for the
/// idle process.
class Trace {
 public:
  Trace(std::int64_t process, std::string_view name);

  /// Names a row. Readers show the rows of a process in the order of their numbers.
  void name_row(std::int64_t row, std::string_view name);
  /// Adds a span. REQUIRES: if two spans of a row overlap, one lies within the other.
  void add(const TraceSpan& span);

  /// The text of the whole file.
  [[nodiscard]] std::string text() const;

 private:
  void begin_event(char phase, std::int64_t row, std::string_view name);
  void add_metadata(std::string_view what, std::int64_t row, const JsonField& field);

  std::int64_t process_;
  std::string events_;
};

/// Appends another trace's events to `all`, which is empty or the text of a trace. Throws Error{io} if `other` is not
/// the text of a Trace. `name`: the name of the other trace, for the message.
void join_trace(std::string& all, std::string_view other, std::string_view name);

/// Adds an arrow (flow) to a joined trace for each message, from its send to its receive. The span of a receive then
/// begins no earlier than the send, because the receiver may have waited for a long time before. A message gets no
/// arrow if one end is missing, or if it seems to arrive before it was sent, which happens with the clocks
/// of two machines.
[[nodiscard]] std::string with_arrows(std::string_view trace);

}  // namespace shardrun::metrics
