#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::plugins {

/// Reads a shared library's file without running any of it.
class ElfFile {
 public:
  enum class Symbols { read, skip };

  /// Throws Error{plugin} unless it is a complete ELF shared library for this machine's architecture. `skip`: does not
  /// read the symbols.
  explicit ElfFile(const std::filesystem::path& path, Symbols symbols = Symbols::read);

  /// Whether the library exports that symbol.
  [[nodiscard]] bool exports(std::string_view symbol) const;

  /// The texts with this tag, such as DT_RUNPATH or DT_NEEDED, in the library's dynamic section.
  [[nodiscard]] std::vector<std::string> dynamic_texts(std::int64_t tag) const;

  /// The first `size` bytes of an exported object as they will be in memory, before relocations. Throws Error{plugin}
  /// if there is no such object of at least that size.
  [[nodiscard]] std::vector<char> object(std::string_view symbol, std::size_t size) const;

 private:
  struct Symbol {
    std::uint64_t address = 0;
    std::uint64_t size = 0;
  };
  struct Segment {
    std::uint64_t address = 0;
    std::uint64_t offset = 0;
    std::uint64_t file_size = 0;
    std::uint64_t memory_size = 0;
  };

  template <class T>
  [[nodiscard]] T read(std::uint64_t offset, std::string_view what) const;
  void check_header() const;
  void read_segments();
  void read_symbols();
  [[nodiscard]] std::uint64_t offset_of(std::uint64_t address) const;
  [[noreturn]] void fail(std::string_view reason) const;

  std::filesystem::path path_;
  std::vector<char> bytes_;
  std::vector<Segment> segments_;
  Segment dynamic_;
  std::map<std::string, Symbol, std::less<>> symbols_;
};

}  // namespace shardrun::plugins
