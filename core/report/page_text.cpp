#include <chrono>
#include <fstream>

#include "core/base/utf8.h"
#include "core/metrics/json_text.h"
#include "core/metrics/log.h"
#include "core/report/document.h"

namespace shardrun::report {
namespace {

constexpr std::string_view mark = "<!-- shardrun report -->";
/// The number of bytes at the beginning of a page among which the mark stands.
constexpr std::size_t most_before_mark = 4096;

/// Replaces the first `what`, from `begin` on. Returns the offset after the replacement.
std::size_t replace_first(std::string& text, std::string_view what, std::string_view with, std::size_t begin) {
  const std::size_t at = text.find(what, begin);
  text.replace(at, what.size(), with);
  return at + with.size();
}

std::string html_text(std::string_view text) {
  std::string html;
  for (const char c : with_replacements(text)) {
    switch (c) {
      case '&': html += "&amp;"; break;
      case '<': html += "&lt;"; break;
      case '>': html += "&gt;"; break;
      case '"': html += "&quot;"; break;
      default: html += c;
    }
  }
  return html;
}

/// JSON with the same value, in UTF-8, in which nothing can end a script element or a line of JavaScript. All that is
/// replaced stands in strings.
std::string script_safe(std::string_view json) {
  constexpr std::string_view separators = "\xe2\x80";  // first bytes of U+2028 and U+2029, which end lines
  std::string safe;
  const std::string text = with_replacements(json);
  safe.reserve(text.size() + text.size() / 64);
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::string_view rest = std::string_view(text).substr(at, 3);
    if (text[at] == '<') {
      safe += "\\u003c";
    } else if (rest.starts_with(separators) && (rest.back() == '\xa8' || rest.back() == '\xa9')) {
      safe += rest.back() == '\xa8' ? "\\u2028" : "\\u2029";
      at += 2;
    } else {
      safe += text[at];
    }
  }
  return safe;
}

}  // namespace

std::string document_text(boost::json::array runs, std::string_view version, bool live) {
  const boost::json::value document = {{"version", std::string(version)},
                                       {"made", metrics::utc_text(std::chrono::system_clock::now())},
                                       {"live", live},
                                       {"runs", std::move(runs)}};
  std::string text;
  metrics::append_json_value(text, document);
  return script_safe(text);
}

std::string page_text(std::string_view title, std::string_view document, bool live) {
  std::string page(page_template);
  page.insert(page.find('>') + 1, mark);  // after the document type
  std::size_t at = replace_first(page, "{{TITLE}}", html_text(title), 0);
  at = replace_first(page, "{{CONNECT}}", live ? "'self'" : "'none'", at);
  replace_first(page, "{{DOCUMENT}}", document, at);
  return page;
}

bool is_page(const std::filesystem::path& file) {
  std::error_code none;
  if (!std::filesystem::is_regular_file(file, none)) {
    return false;
  }
  std::string begin(most_before_mark, '\0');
  std::ifstream stream(file, std::ios::binary);
  stream.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<std::size_t>(stream.gcount()));
  return begin.find(mark) != std::string::npos;
}

}  // namespace shardrun::report
