#pragma once

#include <shardrun/plugin.h>

#include <string>
#include <vector>

#include "plugins/loader/find.h"
#include "plugins/loader/plugin.h"

namespace shardrun::plugins {

/// The manifest as plain values, judged: Throws Error{plugin} unless it is one of a plugin that this host can
/// work with and that is what the file's name says.
[[nodiscard]] Manifest checked_manifest(const sr_manifest& raw, const Candidate& file);

/// SR_KIND_...
[[nodiscard]] std::uint32_t number_of(PluginKind kind) noexcept;

/// Names with spaces between them, one by one.
[[nodiscard]] std::vector<std::string> words_of(const std::string& text);

/// "1.0"
[[nodiscard]] std::string abi_text(std::uint32_t major, std::uint32_t minor);

}  // namespace shardrun::plugins
