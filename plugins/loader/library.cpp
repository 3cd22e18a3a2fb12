#include "plugins/loader/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/dll/shared_library.hpp>
#include <cstring>
#include <exception>

#include "core/base/error.h"
#include "plugins/loader/elf.h"
#include "plugins/loader/needs.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {
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
  // Boost has no NODELETE, but passes the value to dlopen unchanged.
  constexpr auto for_good = static_cast<mode::type>(RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  try {
    const boost::dll::shared_library library(std::filesystem::canonical(file), for_good);
    return &library.get<std::remove_pointer_t<OpenFunction>>("shardrun_open_v1");
  } catch (const std::exception& error) {
    throw Error(ErrorCode::plugin, fmt::format("{} cannot be loaded: {}", file.string(), error.what()));
  }
}

}  // namespace shardrun::plugins
