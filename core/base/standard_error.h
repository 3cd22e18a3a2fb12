#pragma once

#include <string_view>

namespace shardrun {

/// How long to wait for a reader that reads nothing.
enum class Patience {
  until_stopped,  ///< without limit; for one second once this process was asked to stop
  brief,          ///< one second, because the writer has something urgent to do, such as ending this process
};

/// Writes to a standard stream. If nobody reads for as long as the patience lasts, the rest is lost. A line of up to
/// PIPE_BUF bytes is one write, so that lines of other processes on the same pipe do not break it. Returns 0, EAGAIN if
/// text was lost, or the error number.
int write_for_person(int stream, std::string_view text, Patience patience = Patience::until_stopped) noexcept;

/// Writes to standard error, with control characters escaped as in printable_lines(). Ignores failures.
void write_to_standard_error(std::string_view text, Patience patience = Patience::until_stopped) noexcept;

}  // namespace shardrun
