#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shardrun {

/// `text` without the spaces and tabs around it.
[[nodiscard]] std::string_view trimmed(std::string_view text) noexcept;

/// The offset of the first byte that does not belong to well-formed UTF-8 (Unicode 15, table 3-7), or npos.
[[nodiscard]] std::size_t invalid_utf8(std::string_view text) noexcept;

/// The offset of the first control character other than a tab, or npos.
[[nodiscard]] std::size_t control_character(std::string_view text) noexcept;

/// For messages: control characters and bytes that are not UTF-8 are written as \xNN.
[[nodiscard]] std::string escaped(std::string_view text);

/// For messages: like escaped(). A text that would be longer than 80 bytes is cut off, and its length is added.
[[nodiscard]] std::string shown(std::string_view text);

/// Whether a text has the form [a-z][a-z0-9_]* of names of sections, keys, options and mesh axes.
[[nodiscard]] bool is_name(std::string_view text) noexcept;

/// Throws Error{job} "WHERE: WHY".
[[noreturn]] void refuse_at(const std::string& where, std::string_view why);

/// Makes text from outside (of a plugin, a peer, a file's name) one line that cannot control a terminal. Replaces
/// - control characters except tabs, and bytes that are not UTF-8, by \x1b and the like;
/// - characters that change the direction of writing, and control characters beyond ASCII, by \u{202e} and the like.
[[nodiscard]] std::string printable(std::string_view text);

/// printable() for several lines: newlines are kept, too.
[[nodiscard]] std::string printable_lines(std::string_view text);

}  // namespace shardrun
