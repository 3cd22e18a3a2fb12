#pragma once

#include <shardrun/plugin.h>

#include <string>
#include <vector>

#include "plugins/loader/find.h"
#include "plugins/loader/plugin.h"

namespace shardrun::plugins {

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
