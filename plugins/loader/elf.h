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

/// A shared library as its file tells it, without running any of it.
class ElfFile {
 public:
  enum class Symbols { read, skip };

  /// Throws Error{plugin} unless it is a complete ELF shared library of this machine's architecture.
  /// `skip`: it is not asked for symbols.
  explicit ElfFile(const std::filesystem::path& path, Symbols symbols = Symbols::read);

  /// Whether it exports a symbol of that name.
  [[nodiscard]] bool exports(std::string_view symbol) const;

  /// The texts of its dynamic section that have this tag, DT_RUNPATH or DT_NEEDED for example.
  [[nodiscard]] std::vector<std::string> dynamic_texts(std::int64_t tag) const;

  /// The first `size` bytes of the exported object as they will be in memory, relocations aside.
  /// Throws Error{plugin} where it exports none of that size.
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
