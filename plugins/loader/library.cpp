#include "plugins/loader/library.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/dll/shared_library.hpp>
#include <cstring>
#include <exception>

#include "core/base/error.h"
#include "core/base/printable.h"
#include "plugins/loader/elf.h"
#include "plugins/loader/structs.h"
#include "plugins/loader/trust.h"

namespace shardrun::plugins {
namespace {

[[noreturn]] void refuse_search(const std::filesystem::path& file, std::string_view entry, std::string_view why) {
  throw Error(
      ErrorCode::plugin,
      fmt::format("{} would load libraries from '{}' (RUNPATH), {}: link it without that entry, or take it away "
                  "with patchelf --set-rpath",
                  file.string(), printable(entry), why));
}

/// An entry of a search path, as the dynamic linker takes it.
void require_trusted_entry(const std::filesystem::path& file, std::string_view entry) {
  std::string folder(entry);
  for (const std::string_view origin : {"${ORIGIN}", "$ORIGIN"}) {
    if (folder.starts_with(origin) && (folder.size() == origin.size() || folder[origin.size()] == '/')) {
      folder.replace(0, origin.size(), std::filesystem::canonical(file).parent_path().string());
    }
  }
  if (folder.empty()) {
    refuse_search(file, entry, "an empty entry, which stands for the working directory");
  }
  if (folder.front() != '/') {
    refuse_search(file, entry, "which is relative to the working directory");
  }
  try {
    require_trusted_search(folder);
  } catch (const Error& error) {
    refuse_search(file, entry, error.message());
  }
}

/// What a library names is loaded with it, from where it says.
void require_trusted_search(const std::filesystem::path& file, const ElfFile& library) {
  for (const std::int64_t tag : {DT_RPATH, DT_RUNPATH}) {
    for (const std::string& path : library.dynamic_texts(tag)) {
      for (std::size_t at = 0; at <= path.size();) {
        const std::size_t end = std::min(path.find(':', at), path.size());
        require_trusted_entry(file, std::string_view(path).substr(at, end - at));
        at = end + 1;
      }
    }
  }
  for (const std::string& name : library.dynamic_texts(DT_NEEDED)) {
    const std::size_t slash = name.rfind('/');
    if (slash != std::string::npos) {
      require_trusted_entry(file, slash == 0 ? "/" : name.substr(0, slash));
    }
  }
}

}  // namespace

sr_manifest read_manifest(const std::filesystem::path& file) {
  const ElfFile library(file);
  require_trusted_search(file, library);
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
  // NODELETE is no value of Boost's, which hands the number on to dlopen as it is.
  constexpr auto for_good = static_cast<mode::type>(RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  try {
    const boost::dll::shared_library library(std::filesystem::canonical(file), for_good);
    return &library.get<std::remove_pointer_t<OpenFunction>>("shardrun_open_v1");
  } catch (const std::exception& error) {
    throw Error(ErrorCode::plugin, fmt::format("{} cannot be loaded: {}", file.string(), error.what()));
  }
}

}  // namespace shardrun::plugins
