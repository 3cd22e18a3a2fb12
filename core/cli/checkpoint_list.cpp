#include <fmt/format.h>
#include <sys/stat.h>

#include <boost/json.hpp>
#include <chrono>
#include <ctime>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/text.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/open_checkpoint.h"
#include "core/cli/options.h"
#include "core/files/folder.h"
#include "core/metrics/log.h"

namespace shardrun::cli {
namespace {

/// A checkpoint in the list. Only its manifest and the sizes of its files have been read.
struct ListedCheckpoint {
  checkpoint::Listed listed;
  std::string saved;              ///< time in UTC; "" if it has no manifest
  checkpoint::Manifest manifest;  ///< empty if it cannot be read
  std::string fault;              ///< why it cannot be used; "" if it can
};

std::string time_of(const std::filesystem::path& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) != 0
             ? ""
             : metrics::utc_text(std::chrono::system_clock::from_time_t(status.st_mtim.tv_sec)).substr(0, 19) + "Z";
}

ListedCheckpoint look_at(const checkpoint::Listed& listed) {
  ListedCheckpoint found{
      .listed = listed, .saved = time_of(listed.path / checkpoint::manifest_name), .manifest = {}, .fault = {}};
  try {
    found.manifest = checkpoint::read_manifest(listed.path);
    found.listed.step = found.manifest.step;
    for (const checkpoint::StoredFile& file : found.manifest.files) {
      static_cast<void>(checkpoint::open_stored(listed.path, file));
    }
  } catch (const Error& error) {
    found.fault = error.message();
  }
  return found;
}

void print_list(const std::vector<ListedCheckpoint>& checkpoints) {
  fmt::print("{:>9}  {:<20}  {:>10}  {:>5}  {:<24}  {}\n", "step", "saved", "size", "files", "split", "path");
  for (const ListedCheckpoint& each : checkpoints) {
    const checkpoint::Manifest& manifest = each.manifest;
    const std::string split =
        manifest.mesh.empty() ? manifest.strategy : fmt::format("{}: {}", manifest.strategy, manifest.mesh);
    fmt::print("{:>9}  {:<20}  {:>10}  {:>5}  {:<24}  {}\n", each.listed.step, each.saved,
               human_bytes(checkpoint::file_bytes(manifest)), manifest.files.size(), printable(split),
               printable(files::human_path(each.listed.path)));
    if (!each.fault.empty()) {
      fmt::print("{:>9}  damaged: {}\n", "", printable(each.fault));
    }
  }
}

boost::json::object json_of(const ListedCheckpoint& each) {
  const checkpoint::Manifest& manifest = each.manifest;
  boost::json::object json{{"path", each.listed.path.native()},
                           {"step", each.listed.step},
                           {"saved", each.saved},
                           {"whole", each.fault.empty()}};
  if (each.fault.empty()) {
    json["samples"] = manifest.samples;
    json["bytes"] = checkpoint::file_bytes(manifest);
    json["files"] = manifest.files.size();
    json["strategy"] = manifest.strategy;
    json["mesh"] = manifest.mesh;
    json["precision"] = manifest.precision;
  } else {
    json["fault"] = each.fault;
  }
  return json;
}

int list_checkpoints_of(std::span<const std::string> words) {
  const Parsed parsed = parse("checkpoint list", words, {{.name = "json", .help = "print JSON"}}, 1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  const std::string& path = parsed.positional[0];
  std::vector<ListedCheckpoint> checkpoints;
  for (const checkpoint::Listed& listed : checkpoint::checkpoints_at(path)) {
    checkpoints.push_back(look_at(listed));
  }
  if (checkpoints.empty()) {
    static_cast<void>(checkpoint::find_checkpoint(path));  // throws an error that says what was expected
  }
  if (parsed.has("json")) {
    boost::json::array all;
    for (const ListedCheckpoint& each : checkpoints) {
      all.push_back(json_of(each));
    }
    fmt::print("{}\n", boost::json::serialize(all));
  } else {
    print_list(checkpoints);
  }
  return 0;
}

const RegisterCommand checkpoint_list({.name = "checkpoint list",
                                       .arguments = "PATH",
                                       .help = "the checkpoints of a run, or in a folder, and whether they are whole",
                                       .run = list_checkpoints_of});

}  // namespace
}  // namespace shardrun::cli
