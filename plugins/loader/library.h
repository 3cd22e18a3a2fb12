#pragma once

#include <shardrun/plugin.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/loader/find.h"
#include "plugins/loader/plugin.h"

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

/// Reads the manifest from the file, unchecked, without running the plugin's code. Throws Error{plugin} unless the file
/// has the form of a plugin: a shared library with both symbols. All libraries that it needs, directly or indirectly,
/// must come from folders that are trusted like its own.
[[nodiscard]] sr_manifest read_manifest(const std::filesystem::path& file);

using OpenFunction = decltype(&shardrun_open_v1);

/// Loads the library, which is never unloaded, and returns its open function. Throws Error{plugin} with the dynamic
/// linker's text.
[[nodiscard]] OpenFunction load_library(const std::filesystem::path& file);

/// The manifest as plain values. Throws Error{plugin} unless this host can work with the plugin and the file's name
/// agrees with the manifest.
[[nodiscard]] Manifest checked_manifest(const sr_manifest& raw, const Candidate& file);

/// The SR_KIND_... of a kind.
[[nodiscard]] std::uint32_t number_of(PluginKind kind) noexcept;

/// Splits a text at spaces.
[[nodiscard]] std::vector<std::string> words_of(const std::string& text);

/// A version as text: "1.0".
[[nodiscard]] std::string abi_text(std::uint32_t major, std::uint32_t minor);

}  // namespace shardrun::plugins
