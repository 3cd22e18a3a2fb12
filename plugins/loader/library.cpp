#include "plugins/loader/library.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/dll/shared_library.hpp>
#include <cstring>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/trust.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {
namespace {

using std::filesystem::path;

[[noreturn]] void refuse_search(const path& file, std::string_view entry, std::string_view why) {
  throw Error(
      ErrorCode::plugin,
      fmt::format("{} would load libraries from '{}' (RUNPATH), {}: link it without that entry, or take it away "
                  "with patchelf --set-rpath",
                  printable(file.string()), printable(entry), why));
}

/// Expands a name in the dynamic section as the dynamic linker does. `origin`: the folder of the library with the name.
std::string with_origin(std::string_view name, const path& origin) {
  std::string text(name);
  for (const std::string_view word : {"${ORIGIN}", "$ORIGIN"}) {
    if (text.starts_with(word) && (text.size() == word.size() || text[word.size()] == '/')) {
      text.replace(0, word.size(), origin.string());
    }
  }
  return text;
}

/// Checks each library that the dynamic linker can load for a plugin, outside of the system's folders.
class Walk {
 public:
  /// `inherited`: folders of DT_RPATH, in which the dynamic linker also looks for what the needed libraries need.
  void visit(const path& file, const path& origin, const ElfFile& library, std::vector<path> inherited) {
    for (const path& folder : folders_of(file, origin, library, DT_RPATH)) {
      inherited.push_back(folder);
    }
    std::vector<path> searched = inherited;
    for (const path& folder : folders_of(file, origin, library, DT_RUNPATH)) {
      searched.push_back(folder);
    }
    for (const std::int64_t tag : {std::int64_t{DT_NEEDED}, std::int64_t{DT_AUXILIARY}, std::int64_t{DT_FILTER}}) {
      for (const std::string& name : library.dynamic_texts(tag)) {
        if (name.find('/') != std::string::npos) {
          const path named = trusted_folder(file, origin, name);
          visit_need(file, named, inherited);
          continue;
        }
        for (const path& folder : searched) {
          visit_need(file, folder / name, inherited);
          visit_variants(file, folder, name, inherited);
        }
      }
    }
  }

 private:
  static std::vector<path> folders_of(const path& file, const path& origin, const ElfFile& library, std::int64_t tag) {
    std::vector<path> folders;
    for (const std::string& text : library.dynamic_texts(tag)) {
      for (std::size_t at = 0; at <= text.size();) {
        const std::size_t end = std::min(text.find(':', at), text.size());
        folders.push_back(trusted_folder(file, origin, text.substr(at, end - at)));
        at = end + 1;
      }
    }
    return folders;
  }

  /// Expands an entry of a search path, or a name with a slash. Throws Error{plugin} unless the path is trusted.
  static path trusted_folder(const path& file, const path& origin, std::string_view entry) {
    const std::string folder = with_origin(entry, origin);
    if (folder.empty()) {
      refuse_search(file, entry, "an empty entry, which stands for the working directory");
    }
    if (folder.front() != '/') {
      refuse_search(file, entry, "which is relative to the working directory");
    }
    if (folder.find('$', folder.starts_with(origin.string()) ? origin.string().size() : 0) != std::string::npos) {
      refuse_search(file, entry, "where only the dynamic linker knows what the name behind $ stands for");
    }
    try {
      files::require_trusted_search(folder);
    } catch (const Error& error) {
      refuse_search(file, entry, error.message());
    }
    return folder;
  }

  void visit_need(const path& by, const path& named, const std::vector<path>& inherited) {
    std::error_code none;
    if (std::filesystem::symlink_status(named, none).type() == std::filesystem::file_type::not_found) {
      return;
    }
    // Each file by its canonical path, so that the walk ends: folder/../folder/file must not count as another file.
    const path need = std::filesystem::canonical(named.parent_path()) / named.filename();
    if (!visited_.insert(need).second) {
      return;
    }
    try {
      files::require_trusted(need);
    } catch (const Error& error) {
      throw Error(ErrorCode::plugin,
                  fmt::format("{} needs a library that {}", printable(by.string()), error.message()));
    }
    std::optional<ElfFile> library;
    try {
      library.emplace(need, ElfFile::Symbols::skip);
    } catch (const Error&) {
      return;  // for example for another machine: the dynamic linker skips it, or reports it
    }
    visit(need, need.parent_path(), *library, inherited);
  }

  /// Visits the folders in `folder` for variants of the processor, which the dynamic linker searches before `folder`.
  void visit_variants(const path& by, const path& folder, const std::string& name, const std::vector<path>& inherited) {
    for (const char* variants : {"glibc-hwcaps", "tls", "haswell", "xeon_phi", "avx512_1", "x86_64", "aarch64"}) {
      std::error_code none;
      const path top = folder / variants;
      if (!std::filesystem::is_directory(top, none)) {
        continue;
      }
      files::require_trusted_directory(top);
      visit_need(by, top / name, inherited);
      constexpr auto options = std::filesystem::directory_options::follow_directory_symlink;
      for (const auto& entry : std::filesystem::recursive_directory_iterator(top, options)) {
        if (entry.is_directory()) {
          files::require_trusted_directory(entry.path());
          visit_need(by, entry.path() / name, inherited);
        }
      }
    }
  }

  std::set<path> visited_;
};

/// Checks the libraries that a library needs, directly or indirectly, and that the dynamic linker finds by an RPATH, a
/// RUNPATH or a path in a needed library's name. Each such folder, and each library found there, must be trusted like
/// the library's own. Those in the system's folders are not checked. Throws Error{plugin}, which says what is not
/// trusted.
void require_trusted_needs(const path& file, const ElfFile& library) {
  Walk().visit(file, std::filesystem::canonical(file).parent_path(), library, {});
}

}  // namespace

sr_manifest read_manifest(const std::filesystem::path& file) {
  const ElfFile library(file);
  require_trusted_needs(file, library);
  std::vector<char> bytes = library.object("shardrun_manifest_v1", SR_MANIFEST_SIZE_1_0);
  if (!library.exports("shardrun_open_v1")) {
    throw Error(ErrorCode::plugin, fmt::format("{} does not export shardrun_open_v1", file.string()));
  }
  sr_manifest manifest{};
  std::memcpy(&manifest.struct_size, bytes.data(), sizeof(manifest.struct_size));
  if (manifest.struct_size > bytes.size()) {
    bytes = library.object("shardrun_manifest_v1", std::min<std::size_t>(manifest.struct_size, sizeof(manifest)));
  }
  std::memcpy(&manifest, bytes.data(), bytes.size());
  return manifest;
}

OpenFunction load_library(const std::filesystem::path& file) {
  namespace mode = boost::dll::load_mode;
  // Boost has no name for NODELETE, but passes the value to dlopen unchanged.
  constexpr auto for_good = static_cast<mode::type>(RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  try {
    const boost::dll::shared_library library(std::filesystem::canonical(file), for_good);
    return &library.get<std::remove_pointer_t<OpenFunction>>("shardrun_open_v1");
  } catch (const std::exception& error) {
    throw Error(ErrorCode::plugin, fmt::format("{} cannot be loaded: {}", file.string(), error.what()));
  }
}

}  // namespace shardrun::plugins
