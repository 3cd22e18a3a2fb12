#pragma once

#include <string_view>

namespace shardrun {

/// Writes to standard error, as printable_lines() shows it. A text that cannot be shown is lost: nobody is left to
/// tell.
void write_to_standard_error(std::string_view text) noexcept;

}  // namespace shardrun
