#pragma once

#include <string>
#include <string_view>

namespace shardrun {

/// Makes text of others (a plugin, a peer, a file's name) one line that cannot control a terminal. Replaced are
/// - control characters except tabs, and bytes that are not UTF-8: \x1b;
/// - characters that change the direction of writing, and control characters beyond ASCII: \u{202e}.
[[nodiscard]] std::string printable(std::string_view text);

/// printable() for several lines: newlines stay too.
[[nodiscard]] std::string printable_lines(std::string_view text);

}  // namespace shardrun
