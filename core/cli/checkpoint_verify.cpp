#include <fmt/format.h>

#include <boost/json.hpp>
#include <vector>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/text.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/open_checkpoint.h"
#include "core/checkpoint/verify.h"
#include "core/cli/options.h"
#include "core/cli/process.h"
#include "core/files/folder.h"

namespace shardrun::cli {
namespace {

/// The newest checkpoint that the path refers to. It can lack a manifest, which verification then reports.
std::filesystem::path newest_at(const std::string& given) {
  const std::vector<checkpoint::Listed> listed = checkpoint::checkpoints_at(given);
  return listed.empty() ? checkpoint::find_checkpoint(given) : listed.back().path;
}

int verify_saved(std::span<const std::string> words) {
  const Parsed parsed = parse("checkpoint verify", words, {{.name = "json", .help = "print JSON"}}, 1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  catch_stop_signals();
  const std::filesystem::path path = newest_at(parsed.positional[0]);
  const checkpoint::Verified verified = checkpoint::verify_checkpoint(path);
  const bool passed = verified.faults.empty();
  if (parsed.has("json")) {
    const boost::json::object json{
        {"path", path.native()},   {"passed", passed},
        {"files", verified.files}, {"tensors", verified.tensors},
        {"bytes", verified.bytes}, {"faults", boost::json::array(verified.faults.begin(), verified.faults.end())}};
    fmt::print("{}\n", boost::json::serialize(json));
  } else {
    for (const std::string& fault : verified.faults) {
      fmt::print("{}\n", printable(fault));
    }
    fmt::print("{}: {}, {}, {} read: {}\n", printable(files::human_path(path)), counted(verified.files, "file"),
               counted(verified.tensors, "tensor"), human_bytes(verified.bytes),
               passed ? "whole" : counted(static_cast<std::int64_t>(verified.faults.size()), "fault"));
  }
  return passed ? 0 : exit_code(ErrorCode::data);
}

const RegisterCommand checkpoint_verify({.name = "checkpoint verify",
                                         .arguments = "PATH",
                                         .help = "read all of a checkpoint, and check each file and each tensor",
                                         .run = verify_saved});

}  // namespace
}  // namespace shardrun::cli
