#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/template/syntax.h"
#include "core/template/text.h"

namespace shardrun::templates {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

/// Converts all line ends to \n, and removes one at the end of the text.
std::string with_plain_lines(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      result += text[i];
    } else {
      result += '\n';
      i += i + 1 < text.size() && text[i + 1] == '\n' ? 1 : 0;
    }
  }
  if (result.ends_with('\n')) {
    result.pop_back();
  }
  return result;
}

/// The sign at a tag's delimiter: - strips the white space beside the tag, + keeps it. With none, the settings decide.
enum class Sign : std::uint8_t { none, strips, keeps };

class Lexer {
 public:
  explicit Lexer(std::string_view source) : text_(with_plain_lines(source)) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) {
      read_data();
    }
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[nodiscard]] bool sees(std::string_view what) const { return std::string_view(text_).substr(at_).starts_with(what); }
  [[nodiscard]] char next(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }

  [[nodiscard]] Position position() {
    for (; counted_ < at_; ++counted_) {
      if (text_[counted_] == '\n') {
        ++place_.line;
        place_.column = 1;
      } else {
        ++place_.column;
      }
    }
    return place_;
  }

  void add(TokenKind kind, std::string text) {
    tokens_.push_back({.kind = kind, .text = std::move(text), .at = position()});
  }

  void skip_space() {
    while (at_ < text_.size()) {
      const Utf8Character found = utf8_at(text_, at_);
      if (!is_space(found.character)) {
        return;
      }
      at_ += std::max<std::size_t>(found.bytes, 1);
    }
  }

  /// Adds a token for the text before a tag, from `begin` to `end`. Strips white space as the tag's sign says.
  /// REQUIRES: place_ is the position of `begin`.
  void add_data(std::size_t begin, std::size_t end, Sign sign, bool is_variable) {
    std::string_view data = std::string_view(text_).substr(begin, end - begin);
    if (sign == Sign::strips) {
      data = stripped(data, Side::right);
    } else if (sign == Sign::none && !is_variable) {
      const std::size_t line = data.rfind('\n') + 1;  // 0 if there is no line end
      if (line > 0 || line_begins_) {
        const std::string_view last = data.substr(line);
        data = stripped(last, Side::both).empty() ? data.substr(0, line) : data;
      }
    }
    if (!data.empty()) {
      tokens_.push_back({.kind = TokenKind::data, .text = std::string(data), .at = place_});
    }
  }

  Sign read_sign() {
    const char c = next();
    at_ += c == '-' || c == '+' ? 1 : 0;
    return c == '-' ? Sign::strips : c == '+' ? Sign::keeps : Sign::none;
  }

  /// Reads the end of a comment or block, and strips the white space after it as its sign says. Returns false, and
  /// reads nothing, if the end is not here.
  bool read_end(std::string_view end, bool trims, bool knows_plus = true) {
    const std::size_t from = at_;
    const Sign sign = read_sign();
    if (!sees(end) || (sign == Sign::keeps && !knows_plus)) {
      at_ = from;
      return false;
    }
    at_ += end.size();
    if (sign == Sign::strips) {
      skip_space();
    } else if (sign == Sign::none && trims && next() == '\n') {
      ++at_;
    }
    line_begins_ = text_[at_ - 1] == '\n';
    return true;
  }

  /// Reads text up to the next tag, and the beginning of that tag.
  void read_data() {
    const std::size_t begin = at_;
    for (;; ++at_) {
      at_ = std::min(text_.find('{', at_), text_.size());
      if (at_ == text_.size()) {
        const std::size_t end = at_;
        at_ = begin;
        static_cast<void>(position());
        tokens_.push_back({.kind = TokenKind::data, .text = text_.substr(begin), .at = place_});
        at_ = end;
        return;
      }
      if (next(1) == '{' || next(1) == '%' || next(1) == '#') {
        break;
      }
    }
    const std::size_t tag = at_;
    const char kind = next(1);
    at_ = begin;
    static_cast<void>(position());
    at_ = tag + 2;
    const Sign sign = read_sign();
    add_data(begin, tag, sign, kind == '{');
    if (kind == '#') {
      read_comment(tag);
    } else if (kind == '%' && read_raw_begin()) {
      read_raw(tag);
    } else {
      const std::size_t inside = at_;
      at_ = tag;
      add(kind == '{' ? TokenKind::variable_begin : TokenKind::block_begin, "");
      at_ = inside;
      read_tag(kind == '{', tag);
    }
  }

  [[noreturn]] void fail_from(std::size_t at, const std::string& message) {
    at_ = std::max(at, counted_);
    fail_at(position(), message);
  }

  void read_comment(std::size_t tag) {
    for (; at_ < text_.size(); ++at_) {
      if (read_end("#}", true)) {
        return;
      }
    }
    fail_from(tag, "this comment has no end");
  }

  bool read_raw_begin() {
    const std::size_t from = at_;
    skip_space();
    if (sees("raw")) {
      at_ += 3;
      skip_space();
      if (read_end("%}", false, false)) {
        return true;
      }
    }
    at_ = from;
    return false;
  }

  void read_raw(std::size_t tag) {
    const std::size_t begin = at_;
    for (std::size_t end = begin; (end = text_.find("{%", end)) != std::string::npos; ++end) {
      at_ = end + 2;
      const Sign sign = read_sign();
      skip_space();
      if (!sees("endraw")) {
        continue;
      }
      at_ += 6;
      skip_space();
      const bool before = line_begins_;
      if (read_end("%}", true)) {
        const bool behind = std::exchange(line_begins_, before);
        add_data(begin, end, sign, false);
        line_begins_ = behind;
        return;
      }
    }
    fail_from(tag, "this raw block has no end");
  }

  /// Reads the tokens inside {{ }} or {% %}, and the closing delimiter.
  void read_tag(bool is_variable, std::size_t tag) {
    std::string open;  // the brackets that must close the open ones; the innermost is last
    while (true) {
      const std::size_t end = at_;
      const bool is_end = open.empty() && (is_variable ? read_end("}}", false, false) : read_end("%}", true));
      if (is_end) {
        const std::size_t behind = at_;
        at_ = end;
        add(is_variable ? TokenKind::variable_end : TokenKind::block_end, "");
        at_ = behind;
        return;
      }
      if (at_ == text_.size()) {
        fail_from(tag, is_variable ? "this {{ has no }}" : "this {% has no %}");
      }
      const char c = next();
      if (is_space(utf8_at(text_, at_).character)) {
        skip_space();
      } else if (is_digit(c)) {
        read_number();
      } else if (begins_name(c)) {
        std::size_t last = at_;
        while (last < text_.size() && (begins_name(text_[last]) || is_digit(text_[last]))) {
          ++last;
        }
        add(TokenKind::name, text_.substr(at_, last - at_));
        at_ = last;
      } else if (c == '\'' || c == '"') {
        read_text(c);
      } else {
        read_symbol(open);
      }
    }
  }

  void read_symbol(std::string& open) {
    for (const std::string_view symbol : {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                          "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"}) {
      if (!sees(symbol)) {
        continue;
      }
      const char c = symbol[0];
      if (c == '(' || c == '[' || c == '{') {
        open += c == '(' ? ')' : c == '[' ? ']' : '}';
      } else if (c == ')' || c == ']' || c == '}') {
        if (open.empty() || open.back() != c) {
          fail_at(position(), open.empty() ? fmt::format("unexpected '{}'", c)
                                           : fmt::format("expected '{}', found '{}'", open.back(), c));
        }
        open.pop_back();
      }
      add(TokenKind::symbol, std::string(symbol));
      at_ += symbol.size();
      return;
    }
    fail_at(position(),
            fmt::format("unexpected character '{}'",
                        std::string_view(text_).substr(at_, std::max<std::size_t>(utf8_at(text_, at_).bytes, 1))));
  }

  /// The end of the digits that begin at `at`. Single underscores between digits count as digits.
  [[nodiscard]] std::size_t digits_end(std::size_t at, bool hexadecimal = false) const {
    const auto is_one = [&](std::size_t i) {
      return i < text_.size() &&
             (is_digit(text_[i]) || (hexadecimal && ((text_[i] | 0x20) >= 'a' && (text_[i] | 0x20) <= 'f')));
    };
    while (is_one(at) || (at < text_.size() && text_[at] == '_' && is_one(at + 1))) {
      ++at;
    }
    return at;
  }

  void read_number() {
    const bool follows_dot = at_ > 0 && text_[at_ - 1] == '.';
    std::size_t end = digits_end(at_);
    bool is_real = false;
    const auto is_digit_at = [&](std::size_t i) { return i < text_.size() && is_digit(text_[i]); };
    if (!follows_dot) {
      if (end < text_.size() && text_[end] == '.' && is_digit_at(end + 1)) {
        end = digits_end(end + 1);
        is_real = true;
      }
      std::size_t exponent = end;
      if (exponent < text_.size() && (text_[exponent] == 'e' || text_[exponent] == 'E')) {
        ++exponent;
        exponent += exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-') ? 1 : 0;
        if (is_digit_at(exponent)) {
          end = digits_end(exponent);
          is_real = true;
        }
      }
    }
    int base = 10;
    std::size_t first = at_;
    const char letter = static_cast<char>(next(1) | 0x20);
    if (!is_real && next() == '0' && (letter == 'x' || letter == 'b' || letter == 'o')) {
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : 2;
      first += 2;
      end = digits_end(first, base == 16);
    } else if (!is_real && next() == '0') {
      end = std::min(end, text_.find_first_not_of("0_", at_));
    }
    std::string digits = text_.substr(first, end - first);
    std::erase(digits, '_');
    Token token{
        .kind = is_real ? TokenKind::real : TokenKind::integer, .text = text_.substr(at_, end - at_), .at = position()};
    const char* const last = digits.data() + digits.size();
    const auto [rest, fault] = is_real ? std::from_chars(digits.data(), last, token.real)
                                       : std::from_chars(digits.data(), last, token.integer, base);
    if (fault != std::errc() || rest != last) {
      fail_at(token.at,
              fmt::format("the number {} is not supported: it has more than 64 bits, or is no number", token.text));
    }
    tokens_.push_back(std::move(token));
    at_ = end;
  }

  void read_text(char mark) {
    std::size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != mark) {
      end += text_[end] == '\\' ? 2 : 1;
    }
    if (end >= text_.size()) {
      fail_at(position(), "this text has no end");
    }
    add(TokenKind::text, unescaped(std::string_view(text_).substr(at_ + 1, end - at_ - 1)));
    at_ = end + 1;
  }

  std::string unescaped(std::string_view text) {
    std::string result;
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        result += text[i];
        continue;
      }
      const char c = text[++i];
      constexpr std::string_view letters = "\\'\"abfnrtv";
      if (const std::size_t known = letters.find(c); known != std::string_view::npos) {
        result += "\\'\"\a\b\f\n\r\t\v"[known];
      } else if (c == '\n') {
        continue;
      } else if (c >= '0' && c <= '7') {
        std::size_t last = i;
        while (last < text.size() && last < i + 3 && text[last] >= '0' && text[last] <= '7') {
          ++last;
        }
        append_code(result, text.substr(i, last - i), 8, last - i);
        i = last - 1;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        append_code(result, text.substr(i + 1, digits), 16, digits);
        i += digits;
      } else if (c == 'N') {
        fail_at(position(), "characters by name, \\N{…}, are not supported");
      } else {
        result += '\\';
        result += c;
      }
    }
    return result;
  }

  void append_code(std::string& to, std::string_view digits, int base, std::size_t expected) {
    std::uint32_t code = 0;
    const auto [rest, fault] = std::from_chars(digits.data(), digits.data() + digits.size(), code, base);
    if (fault != std::errc() || digits.size() != expected || rest != digits.data() + digits.size() || code > 0x10FFFF ||
        (code >= 0xD800 && code < 0xE000)) {
      fail_at(position(), fmt::format("'{}' after \\ is no character", digits));
    }
    append_utf8(to, static_cast<char32_t>(code));
  }

  std::string text_;
  std::size_t at_ = 0;
  std::size_t counted_ = 0;  ///< place_ is the position of this offset
  Position place_;
  bool line_begins_ = true;  ///< whether the text after the latest tag begins a line
  std::vector<Token> tokens_;
};

}  // namespace

void fail_at(Position at, const std::string& message) {
  throw Error(ErrorCode::data, fmt::format("line {}, column {}: {}", at.line, at.column, message));
}

std::vector<Token> tokens_of(std::string_view source) { return Lexer(source).run(); }

}  // namespace shardrun::templates
