#pragma once

#include <string>
#include <string_view>

namespace shardrun {

/// Makes text from outside (of a plugin, a peer, a file's name) one line that cannot control a terminal. Replaces
/// - control characters except tabs, and bytes that are not UTF-8, by \x1b and the like;
/// - characters that change the direction of writing, and control characters beyond ASCII, by \u{202e} and the like.
[[nodiscard]] std::string printable(std::string_view text);

/// printable() for several lines: newlines are kept, too.
[[nodiscard]] std::string printable_lines(std::string_view text);

}  // namespace shardrun
