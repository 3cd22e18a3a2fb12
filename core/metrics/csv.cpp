#include "core/metrics/other_formats.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <utility>

#include "core/files/atomic_file.h"
#include "core/metrics/json_text.h"

namespace shardrun::metrics {
namespace {

constexpr std::string_view end_of_row = "\r\n";

/// Appends a row with a cell for each column. `append_cell` appends the cell of a column.
void append_row(std::string& text, std::span<const std::string_view> columns, const auto& append_cell) {
  for (std::size_t i = 0; i < columns.size(); ++i) {
    text += i == 0 ? "" : ",";
    append_cell(columns[i]);
  }
  text += end_of_row;
}

}  // namespace

CsvWriter::CsvWriter(std::filesystem::path path, std::filesystem::path lines, std::span<const std::string_view> columns)
    : path_(std::move(path)), lines_(std::move(lines)), columns_(columns) {
  rewrite();
}

void CsvWriter::write(std::span<const JsonField> fields) {
  line_.clear();
  append_row(line_, columns_, [&](std::string_view column) {
    const auto field = std::ranges::find(fields, column, &JsonField::name);
    if (field == fields.end()) {
      return;
    }
    const double* const real = std::get_if<double>(&field->value);
    if (real == nullptr || std::isfinite(*real)) {
      std::visit([&](auto value) { append_json(line_, value); }, field->value);
    }
  });
  file_->append(line_);
}

void CsvWriter::rewrite() {
  std::string text;
  append_row(text, columns_, [&](std::string_view column) { text += column; });
  std::ifstream lines(lines_);
  for (std::string line; std::getline(lines, line);) {
    std::map<std::string_view, std::string_view> cells;
    for_numbers(line, [&](std::string_view name, std::string_view value) {
      if (value != "null") {
        cells[name] = value;
      }
    });
    append_row(text, columns_, [&](std::string_view column) { text += cells[column]; });
  }
  files::write_file_atomically(path_, text);
  file_.emplace(path_);
}

}  // namespace shardrun::metrics
