#pragma once

#include <string>
#include <string_view>

namespace shardrun {

/// Text that somebody else wrote (a plugin, a peer, a file's name) as one line that a terminal only shows: control
/// characters but tabs, and bytes that are no UTF-8, become \x1b; characters that change the direction of writing, and
/// control characters beyond ASCII, \u{202e}. All else stays as it is.
[[nodiscard]] std::string printable(std::string_view text);

/// The same of several lines: newlines stay too.
[[nodiscard]] std::string printable_lines(std::string_view text);

}  // namespace shardrun
