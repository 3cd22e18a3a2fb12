#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/suggest.h"
#include "core/base/text.h"
#include "core/checkpoint/open_checkpoint.h"
#include "core/cli/options.h"
#include "core/files/folder.h"
#include <shardrun/sdk/strategy/glob.hpp>

namespace shardrun::cli {
namespace {

std::vector<checkpoint::StoredTensor> tensors_like(const checkpoint::Manifest& manifest, const std::string& wanted) {
  std::vector<checkpoint::StoredTensor> found;
  std::vector<std::string> names;
  for (const checkpoint::StoredTensor& tensor : manifest.tensors) {
    names.push_back(tensor.name);
    if (tensor.name == wanted || sdk::glob_matches(wanted, tensor.name)) {
      found.push_back(tensor);
    }
  }
  if (found.empty()) {
    throw Error(ErrorCode::usage, fmt::format("checkpoint show: the checkpoint has no tensor '{}'{}; '*' shows all",
                                              wanted, did_you_mean(wanted, names)));
  }
  return found;
}

std::string run_text(const checkpoint::Manifest& manifest) {
  const checkpoint::RunIdentity& run = manifest.run;
  std::string text = fmt::format("step {}, {} samples consumed, seed {}\n{} by strategy {} ({}), {}\n", manifest.step,
                                 manifest.samples, run.seed, run.task, manifest.strategy,
                                 manifest.mesh.empty() ? "one rank" : manifest.mesh, manifest.precision);
  text += fmt::format("{} {}: {}\n", manifest.files.size(), manifest.files.size() == 1 ? "file" : "files",
                      human_bytes(checkpoint::file_bytes(manifest)));
  for (const std::string& data : run.data) {
    text += fmt::format("data: {}\n", data);
  }
  text += run.optimizer.empty() ? "" : fmt::format("optimizer: {}\n", run.optimizer);
  return text + run.model;
}

std::string tensor_text(const checkpoint::StoredTensor& tensor) {
  return fmt::format("{:<10} {:<5} {} [{}] in {}\n", to_string(tensor.role), to_string(tensor.dtype), tensor.name,
                     fmt::join(tensor.shape, ", "), counted(static_cast<std::int64_t>(tensor.pieces.size()), "piece"));
}

std::string piece_text(const checkpoint::Piece& piece, const checkpoint::Manifest& manifest) {
  std::string text = fmt::format("    {} at byte {}: origin [{}], extent [{}]", manifest.files[piece.file].name,
                                 piece.offset, fmt::join(piece.box.origin, ", "), fmt::join(piece.box.shape, ", "));
  if (piece.box.run) {
    text += fmt::format(", of which elements {} to {}", piece.box.run->begin, piece.box.run->end - 1);
  }
  return text + "\n";
}

boost::json::array numbers_of(const std::vector<std::int64_t>& numbers) {
  return boost::json::array(numbers.begin(), numbers.end());
}

boost::json::array pieces_json(const checkpoint::StoredTensor& tensor, const checkpoint::Manifest& manifest) {
  boost::json::array pieces;
  for (const checkpoint::Piece& piece : tensor.pieces) {
    boost::json::object json{{"file", manifest.files[piece.file].name},
                             {"offset", piece.offset},
                             {"origin", numbers_of(piece.box.origin)},
                             {"extent", numbers_of(piece.box.shape)}};
    if (piece.box.run) {
      json["run"] = {piece.box.run->begin, piece.box.run->end};
    }
    pieces.push_back(std::move(json));
  }
  return pieces;
}

std::string show_json(const checkpoint::Manifest& manifest, const std::vector<checkpoint::StoredTensor>& tensors,
                      bool with_pieces) {
  boost::json::array all;
  for (const checkpoint::StoredTensor& tensor : tensors) {
    boost::json::object json{{"name", tensor.name},
                             {"role", to_string(tensor.role)},
                             {"dtype", to_string(tensor.dtype)},
                             {"shape", numbers_of(tensor.shape)}};
    json["pieces"] =
        with_pieces ? boost::json::value(pieces_json(tensor, manifest)) : boost::json::value(tensor.pieces.size());
    all.push_back(std::move(json));
  }
  const checkpoint::RunIdentity& run = manifest.run;
  const boost::json::object json{{"step", manifest.step},
                                 {"samples", manifest.samples},
                                 {"seed", run.seed},
                                 {"task", run.task},
                                 {"model", run.model},
                                 {"optimizer", run.optimizer},
                                 {"data", boost::json::array(run.data.begin(), run.data.end())},
                                 {"strategy", manifest.strategy},
                                 {"mesh", manifest.mesh},
                                 {"precision", manifest.precision},
                                 {"files", manifest.files.size()},
                                 {"bytes", checkpoint::file_bytes(manifest)},
                                 {"tensors", std::move(all)}};
  return boost::json::serialize(json) + "\n";
}

int show_checkpoint(std::span<const std::string> words) {
  const Parsed parsed = parse("checkpoint show", words, {{.name = "json", .help = "print JSON"}}, 1, 2);
  if (parsed.help_shown) {
    return 0;
  }
  const std::filesystem::path path = checkpoint::find_checkpoint(parsed.positional[0]);
  const checkpoint::Manifest manifest = checkpoint::read_manifest(path);
  const bool is_some = parsed.positional.size() > 1;
  const std::vector<checkpoint::StoredTensor> tensors =
      is_some ? tensors_like(manifest, parsed.positional[1]) : manifest.tensors;
  if (parsed.has("json")) {
    fmt::print("{}", show_json(manifest, tensors, is_some));
    return 0;
  }
  std::string text;
  if (!is_some) {
    text = fmt::format("{}\n{}\n", files::human_path(path), run_text(manifest));
  }
  for (const checkpoint::StoredTensor& tensor : tensors) {
    text += tensor_text(tensor);
    for (const checkpoint::Piece& piece : tensor.pieces) {
      text += is_some ? piece_text(piece, manifest) : "";
    }
  }
  fmt::print("{}", printable_lines(text));
  return 0;
}

const RegisterCommand checkpoint_show(
    {.name = "checkpoint show",
     .arguments = "PATH [TENSOR]",
     .help = "the run and the tensors of a checkpoint; with TENSOR, a name or a glob, also where pieces lie",
     .run = show_checkpoint});

}  // namespace
}  // namespace shardrun::cli
