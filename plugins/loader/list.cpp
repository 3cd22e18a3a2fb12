#include <fmt/format.h>

#include <map>

#include "core/base/error.h"
#include "core/files/trust.h"
#include "plugins/loader/apart.h"
#include "plugins/loader/find.h"
#include "plugins/loader/guard.h"
#include "plugins/loader/library.h"
#include "plugins/loader/manifest.h"
#include "plugins/loader/model.h"
#include "plugins/loader/plugin.h"
#include "plugins/loader/strategy.h"

namespace shardrun::plugins {
namespace {

/// Fills in what other plugins could spoil, by opening the plugin in a forked copy of this process.
void try_out(const Candidate& file, PluginInfo& info) {
  files::require_trusted(file.path);
  const sr_manifest raw = read_manifest(file.path);
  info.abi = abi_text(raw.major, raw.minor);
  info.version = checked_manifest(raw, file).version;
  const LogSink nowhere = [](LogLevel, std::string_view, std::string_view) {};
  try_apart(label_of(file), call_limit(), [&] { (void)Plugin::open_file(file, nowhere); });
}

void describe(const Candidate& file, PluginInfo& info) {
  const Plugin plugin = Plugin::open_file(file, {});
  info.options = plugin.options();
  if (file.kind == to_string(PluginKind::model)) {
    for (const std::shared_ptr<const ModelOp>& op : declared_ops(plugin)) {
      info.ops.emplace_back(op->name, op->help);
    }
  }
  info.reads_sharding = file.kind == to_string(PluginKind::strategy) && reads_sharding(plugin);
}

template <class Act>
void noting_errors(PluginInfo& info, Act act) {
  try {
    act();
  } catch (const std::exception& error) {
    info.error = error.what();
  }
}

}  // namespace

std::vector<PluginInfo> list_plugins(const Directories& directories) {
  std::vector<PluginInfo> list;
  std::map<std::string, std::filesystem::path> first;  // by file name
  for (const std::filesystem::path& directory : directories) {
    for (const Candidate& file : candidates_in(directory)) {
      PluginInfo info;
      info.path = file.path;
      info.kind = file.kind;
      info.name = file.name;
      const auto [winner, is_first] = first.try_emplace(file.path.filename().string(), file.path);
      if (!is_first) {
        info.shadowed_by = winner->second;
      }
      noting_errors(info, [&] { try_out(file, info); });
      list.push_back(std::move(info));
    }
  }
  for (PluginInfo& info : list) {
    if (info.error.empty()) {
      noting_errors(info, [&] { describe({info.path, info.kind, info.name}, info); });
    }
  }
  return list;
}

}  // namespace shardrun::plugins
