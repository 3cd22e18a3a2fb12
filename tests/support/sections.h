#pragma once

#include <charconv>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

// Many small inputs in one text file. A line "=== NAME" begins an input; lines before the first are comments. In an
// input \xHH is a byte, \\ is a backslash, and a backslash at the end of a line removes the newline behind it.

namespace shardrun::test {

struct Section {
  std::string name;
  std::vector<std::string> lines;  ///< as they stand in the file
};

/// Throws std::runtime_error where the file cannot be read or has no section.
inline std::vector<Section> read_sections(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Section> sections;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("=== ")) {
      sections.push_back({line.substr(4), {}});
    } else if (!sections.empty()) {
      sections.back().lines.push_back(line);
    }
  }
  if (sections.empty()) {
    throw std::runtime_error("no sections in " + path.string());
  }
  return sections;
}

/// The bytes of a line, with its newline.
inline std::string unescaped(std::string_view line) {
  std::string bytes;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      bytes += line[i];
    } else if (i + 1 == line.size()) {
      return bytes;
    } else if (line[++i] == '\\') {
      bytes += '\\';
    } else {
      unsigned value = 0;
      const std::string_view digits = line.substr(i + 1, 2);
      const char* const end = digits.data() + digits.size();
      if (line[i] != 'x' || digits.size() != 2 || std::from_chars(digits.data(), end, value, 16).ptr != end) {
        throw std::runtime_error("expected \\xHH or \\\\ in " + std::string(line));
      }
      bytes += static_cast<char>(value);
      i += 2;
    }
  }
  return bytes + '\n';
}

/// The lines of an input of these bytes.
inline std::string escaped(std::string_view bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string lines;
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    const bool begins_line = lines.empty() || lines.back() == '\n';
    if (byte == '\n') {
      lines += byte;
    } else if (byte == '\\') {
      lines += "\\\\";
    } else if (value < 0x20 || value >= 0x7f || (byte == '=' && begins_line)) {
      lines += {'\\', 'x', digits[value >> 4U], digits[value & 15U]};
    } else {
      lines += byte;
    }
  }
  return bytes.ends_with('\n') ? lines : lines + "\\\n";
}

}  // namespace shardrun::test
