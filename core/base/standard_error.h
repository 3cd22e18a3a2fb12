#pragma once

#include <string_view>

namespace shardrun {

/// Writes to a standard stream. Where nobody reads it, it waits; but only for a second once this process was asked to
/// stop, and then the rest is lost. Returns 0, EAGAIN for that, or the error number.
int write_for_person(int stream, std::string_view text) noexcept;

/// Writes to standard error, as printable_lines() shows it. A text that cannot be shown is lost: nobody is left to
/// tell.
void write_to_standard_error(std::string_view text) noexcept;

}  // namespace shardrun
