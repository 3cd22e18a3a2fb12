#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/metrics/jsonl.h"

namespace shardrun::metrics {

/// Arguments of spans that belong to one message: the sent and the received one. Their text is the same at both ends.
inline constexpr std::string_view message_sent = "sends";
inline constexpr std::string_view message_received = "receives";

/// A span of time in a row of its process. Times are nanoseconds of one clock for all processes.
struct TraceSpan {
  std::int64_t row = 1;
  std::string_view name;
  std::string_view category;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::span<const JsonField> arguments;
};

/// A process's activities over time, in the Trace Event Format: JSON for Perfetto (ui.perfetto.dev) and
/// chrome://tracing, an event a line. Processes and rows are numbered from 1, because 0 means the idle process to some
/// readers.
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

/// Appends another trace's events to `all`, which is empty or the text of a trace. Throws Error{io} if `other` is not
/// the text of a Trace. `name`: of the other, for the message.
void join_trace(std::string& all, std::string_view other, std::string_view name);

/// Adds to a joined trace an arrow (flow) from the send to the receive of each message. The span of a receive is made
/// to begin with the send at the earliest, because the receiver may have waited long before. There is no arrow if one
/// end is missing, or if the message arrived before it was sent, as with the clocks of two machines.
[[nodiscard]] std::string with_arrows(std::string_view trace);

}  // namespace shardrun::metrics
