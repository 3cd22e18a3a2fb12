#include "core/job/ini.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/text.h"

namespace shardrun::job {
namespace {

constexpr std::string_view include_key = "include";
constexpr std::string_view byte_order_mark = "\xEF\xBB\xBF";

/// Where a comment begins: at the first ; or # that begins the text or follows white space.
std::size_t comment_start(std::string_view text) noexcept {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((text[i] == ';' || text[i] == '#') && (i == 0 || text[i - 1] == ' ' || text[i - 1] == '\t')) {
      return i;
    }
  }
  return text.size();
}

void check_bytes(std::string_view line, const std::string& where) {
  if (const std::size_t at = invalid_utf8(line); at != std::string_view::npos) {
    refuse_at(where, fmt::format("byte {} of the line, \\x{:02x}, is not UTF-8; save the file as UTF-8", at + 1,
                                 static_cast<unsigned char>(line[at])));
  }
  if (const std::size_t at = control_character(line); at != std::string_view::npos) {
    refuse_at(where, fmt::format("byte {} of the line is the control character \\x{:02x}{}; remove it", at + 1,
                                 static_cast<unsigned char>(line[at]), line[at] == '\0' ? " (NUL)" : ""));
  }
}

/// The value after the opening quote of `text`. Throws Error{job} if more than a comment follows the closing quote.
std::string quoted_value(std::string_view text, const std::string& where) {
  std::string value;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] != '"') {
      value += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == '"') {
      value += text[++i];
    } else {
      const std::string_view rest = text.substr(i + 1);
      const std::string_view content = trimmed(rest.substr(0, comment_start(rest)));
      if (!content.empty()) {
        refuse_at(where, fmt::format("'{}' stands after the closing quote of a value; a quote within a value is "
                                     "written twice",
                                     shown(content)));
      }
      return value;
    }
  }
  refuse_at(where, fmt::format("the value {} has no closing quote; end it with \"", shown(text)));
}

class Parser {
 public:
  explicit Parser(const std::string& file) : file_(file) {}

  void read_line(std::string_view line, std::size_t number) {
    const std::string where = fmt::format("{}:{}", file_, number);
    if (line.size() > max_line_bytes) {
      refuse_at(where, fmt::format("the line has {} bytes; it may have at most {}", line.size(), max_line_bytes));
    }
    check_bytes(line, where);
    line = trimmed(line);
    if (line.empty() || line.front() == ';' || line.front() == '#') {
      return;
    }
    if (line.front() == '[') {
      read_header(trimmed(line.substr(0, comment_start(line))), where);
    } else {
      read_setting(line, where);
    }
  }

  RawText take() { return {std::move(includes_), std::move(sections_)}; }

 private:
  void read_header(std::string_view header, const std::string& where) {
    if (header.back() != ']') {
      refuse_at(where, fmt::format("'{}' is not a section header; write [name] alone on the line", shown(header)));
    }
    const std::string_view name = trimmed(header.substr(1, header.size() - 2));
    if (name.empty()) {
      refuse_at(where, "the section has no name; write it between the brackets, as in [job]");
    }
    const auto first = std::find_if(sections_.begin(), sections_.end(), [&](const auto& s) { return s.name == name; });
    if (first != sections_.end()) {
      refuse_at(where, fmt::format("section [{}] is given twice, first at {}; put its keys under one header",
                                   shown(name), first->where));
    }
    sections_.push_back({std::string(name), where, {}});
  }

  void read_setting(std::string_view line, const std::string& where) {
    const std::size_t equals = line.find('=');
    if (comment_start(line) < equals || equals == std::string_view::npos) {
      refuse_at(where, fmt::format("'{}' has no '='; write key = value, [section], or ; before a comment",
                                   shown(trimmed(line.substr(0, comment_start(line))))));
    }
    const std::string_view key = trimmed(line.substr(0, equals));
    if (key.empty()) {
      refuse_at(where, fmt::format("'{}' has no key before '='; write key = value", shown(line)));
    }
    if (sections_.empty() && key == include_key) {
      includes_.push_back({read_value(line.substr(equals + 1), key, where), where});
      return;
    }
    if (sections_.empty()) {
      refuse_at(where, fmt::format("key '{}' stands before the first section, where only {} may; put it under a header "
                                   "such as [job]",
                                   shown(key), include_key));
    }
    if (key == include_key) {
      refuse_at(where, fmt::format("{} stands within [{}]; put it at the top of the file, before the first section",
                                   include_key, shown(sections_.back().name)));
    }
    RawSection& section = sections_.back();
    const auto first = std::find_if(section.settings.begin(), section.settings.end(),
                                    [&](const auto& setting) { return setting.key == key; });
    if (first != section.settings.end()) {
      refuse_at(where, fmt::format("key '{}' is given twice in [{}], first at {}; keep one of them", shown(key),
                                   shown(section.name), first->where));
    }
    section.settings.push_back({std::string(key), read_value(line.substr(equals + 1), key, where), where});
  }

  static std::string read_value(std::string_view text, std::string_view key, const std::string& where) {
    text = trimmed(text);
    if (!text.empty() && text.front() == '"') {
      return quoted_value(text, where);
    }
    const std::string_view value = trimmed(text.substr(0, comment_start(text)));
    if (value.empty()) {
      refuse_at(where, fmt::format("key '{}' has no value; give one, or remove the line", shown(key)));
    }
    return std::string(value);
  }

  const std::string& file_;
  std::vector<RawInclude> includes_;
  std::vector<RawSection> sections_;
};

}  // namespace

RawText parse_ini(std::string_view text, const std::string& file) {
  if (text.size() > max_file_bytes) {
    refuse_at(file,
              fmt::format("has more than the {} bytes that a job file may have. Is it a data file?", max_file_bytes));
  }
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    refuse_at(file, "is UTF-16; save it as UTF-8");
  }
  if (text.starts_with(byte_order_mark)) {
    text.remove_prefix(byte_order_mark.size());
  }
  Parser parser(file);
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    parser.read_line(line, number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parser.take();
}

std::string write_value(std::string_view value) {
  const bool plain =
      !value.empty() && trimmed(value) == value && value.front() != '"' && comment_start(value) == value.size();
  if (plain) {
    return std::string(value);
  }
  std::string quoted = "\"";
  for (const char c : value) {
    quoted += c;
    if (c == '"') {
      quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace shardrun::job
