#include "plugins/loader/library.h"

#include <fmt/format.h>

#include <cstring>
#include <iterator>
#include <optional>
#include <sstream>

#include "core/base/error.h"
#include "core/base/text.h"

namespace shardrun::plugins {
namespace {

struct KindName {
  PluginKind kind;
  std::uint32_t number;
  std::string_view name;
};

constexpr KindName kinds[] = {{PluginKind::strategy, SR_KIND_STRATEGY, "strategy"},
                              {PluginKind::transport, SR_KIND_TRANSPORT, "transport"},
                              {PluginKind::model, SR_KIND_MODEL, "model"},
                              {PluginKind::engine, SR_KIND_ENGINE, "engine"}};

template <std::size_t Size>
std::optional<std::string> bounded_text(const char (&text)[Size]) {
  const std::size_t length = ::strnlen(text, Size);
  return length < Size ? std::optional<std::string>(std::in_place, text, length) : std::nullopt;
}

void check_versions(const sr_manifest& raw, const std::string& path) {
  if (raw.magic != SR_MAGIC) {
    throw Error(ErrorCode::plugin, fmt::format("{}: its manifest begins with {:#010x}, expected {:#010x}: it was not "
                                               "built from shardrun/plugin.h",
                                               path, raw.magic, SR_MAGIC));
  }
  if (raw.major != SR_ABI_MAJOR) {
    throw Error(ErrorCode::plugin,
                fmt::format("{} is built for plugin ABI {}, but this shardrun offers {}: rebuild the plugin from this "
                            "shardrun's headers",
                            path, abi_text(raw.major, raw.minor), abi_text(SR_ABI_MAJOR, SR_ABI_MINOR)));
  }
  if (raw.struct_size < SR_MANIFEST_SIZE_1_0) {
    throw Error(ErrorCode::plugin, fmt::format("{}: its manifest has struct_size {}, expected {} or more", path,
                                               raw.struct_size, SR_MANIFEST_SIZE_1_0));
  }
  if (raw.min_host_minor > SR_ABI_MINOR) {
    throw Error(ErrorCode::plugin,
                fmt::format("{} needs plugin ABI {} or later, but this shardrun offers {}: use a newer shardrun or an "
                            "older plugin",
                            path, abi_text(raw.major, raw.min_host_minor), abi_text(SR_ABI_MAJOR, SR_ABI_MINOR)));
  }
}

}  // namespace

std::string_view to_string(PluginKind kind) {
  for (const KindName& known : kinds) {
    if (known.kind == kind) {
      return known.name;
    }
  }
  return "";
}

std::uint32_t number_of(PluginKind kind) noexcept {
  for (const KindName& known : kinds) {
    if (known.kind == kind) {
      return known.number;
    }
  }
  return 0;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::string abi_text(std::uint32_t major, std::uint32_t minor) { return fmt::format("{}.{}", major, minor); }

Manifest checked_manifest(const sr_manifest& raw, const Candidate& file) {
  const std::string path = file.path.string();
  check_versions(raw, path);
  const KindName* kind = nullptr;
  for (const KindName& known : kinds) {
    if (known.number == raw.kind) {
      kind = &known;
    }
  }
  if (kind == nullptr) {
    throw Error(ErrorCode::plugin,
                fmt::format("{} is a plugin of kind {}, which this shardrun does not know: use a newer shardrun", path,
                            raw.kind));
  }
  const std::optional<std::string> name = bounded_text(raw.name);
  const std::optional<std::string> version = bounded_text(raw.version);
  const std::optional<std::string> aliases = bounded_text(raw.aliases);
  if (!name || !version || !aliases) {
    throw Error(ErrorCode::plugin, fmt::format("{}: a text in its manifest has no end", path));
  }
  if (kind->name != file.kind || *name != file.name) {
    throw Error(ErrorCode::plugin,
                fmt::format("{0} says that it is the {1} '{2}', but its file's name says the {3} '{4}': name the file "
                            "shardrun_{1}_{2}.so",
                            path, kind->name, printable(*name), file.kind, file.name));
  }
  return {kind->kind, *name, printable(*version), raw.major, raw.minor, words_of(printable(*aliases))};
}

}  // namespace shardrun::plugins
