#pragma once

#include <string_view>

namespace shardrun {

/// How long to wait for a reader who takes nothing.
enum class Patience {
  until_stopped,  ///< for ever, but for a second once this process was asked to stop
  brief,          ///< for a second: whoever writes has something to do that must not wait, as to end this process
};

/// Writes to a standard stream. Where nobody takes anything for so long, the rest is lost. A line of up to PIPE_BUF
/// bytes is written at once, so that other processes' lines on the same pipe do not tear it. Returns 0, EAGAIN where
/// text was lost, or the error number.
int write_for_person(int stream, std::string_view text, Patience patience = Patience::until_stopped) noexcept;

/// Writes to standard error, as printable_lines() shows it. A text that cannot be shown is lost: nobody is left to
/// tell.
void write_to_standard_error(std::string_view text, Patience patience = Patience::until_stopped) noexcept;

}  // namespace shardrun
