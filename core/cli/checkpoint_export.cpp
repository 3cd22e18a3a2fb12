#include <fmt/format.h>

#include <cstdint>
#include <optional>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/printable.h"
#include "core/checkpoint/export.h"
#include "core/checkpoint/open_checkpoint.h"
#include "core/checkpoint/tensor_source.h"
#include "core/cli/options.h"
#include "core/cli/process.h"
#include "core/files/folder.h"
#include "core/options/options.h"

namespace shardrun::cli {
namespace {

constexpr const char* usual_max_bytes = "5G";

std::uint64_t max_bytes_of(const Parsed& parsed) {
  const OptionSpec spec{.name = "max_bytes", .type = OptionType::bytes, .minimum = 1};
  try {
    const OptionValue value =
        read_option(std::span(&spec, 1), spec.name, parsed.get("max-bytes").value_or(usual_max_bytes));
    return static_cast<std::uint64_t>(std::get<std::int64_t>(value));
  } catch (const Error& error) {
    throw Error(ErrorCode::usage, fmt::format("--max-bytes: {}", error.message()));
  }
}

std::optional<checkpoint::DType> type_of(const Parsed& parsed) {
  const std::optional<std::string> name = parsed.get("type");
  if (!name) {
    return std::nullopt;
  }
  if (*name != "f32" && *name != "bf16") {
    throw Error(ErrorCode::usage, fmt::format("--type: expected f32 or bf16, found '{}'", *name));
  }
  return *name == "f32" ? checkpoint::DType::f32 : checkpoint::DType::bf16;
}

int export_saved(std::span<const std::string> words) {
  const Parsed parsed = parse(
      "checkpoint export", words,
      {{.name = "output",
        .value = "FILE|FOLDER",
        .help = "a name that ends in .safetensors: one file; else a folder with model.safetensors, or with several "
                "files and an index",
        .letter = 'o'},
       {.name = "max-bytes", .value = "SIZE", .help = "of the tensors in each file of a folder (default 5G)"},
       {.name = "all", .help = "also the states of the optimizer and of the strategy"},
       {.name = "type",
        .value = "f32|bf16",
        .help = "of real numbers (default: as stored; parameters are stored as f32)"}},
      1, 1);
  if (parsed.help_shown) {
    return 0;
  }
  const std::string output = parsed.get("output").value_or("");
  if (output.empty()) {
    throw Error(ErrorCode::usage, "checkpoint export: name the file or folder to write with -o");
  }
  const bool is_file = output.ends_with(".safetensors");
  if (is_file && parsed.has("max-bytes")) {
    throw Error(ErrorCode::usage, fmt::format("checkpoint export: --max-bytes has no effect on the one file '{}': name "
                                              "a folder with -o",
                                              output));
  }
  const checkpoint::ExportSettings settings{.max_bytes = max_bytes_of(parsed), .type = type_of(parsed)};
  catch_stop_signals();
  const checkpoint::OpenCheckpoint opened(checkpoint::find_checkpoint(parsed.positional[0]));
  opened.check_all_files();
  const checkpoint::TensorSource source =
      parsed.has("all") ? checkpoint::states_of(opened) : checkpoint::weights_of(opened);
  const checkpoint::Exported exported = is_file ? checkpoint::export_file(source, output, settings.type)
                                                : checkpoint::export_folder(source, output, settings);
  fmt::print("{} of step {}, {}, in\n", counted(exported.tensors, "tensor"), opened.manifest().step,
             human_bytes(exported.bytes));
  for (const std::filesystem::path& file : exported.files) {
    fmt::print("    {}\n", printable(files::human_path(file)));
  }
  return 0;
}

const RegisterCommand checkpoint_export({.name = "checkpoint export",
                                         .arguments = "PATH -o FILE|FOLDER",
                                         .help = "write a checkpoint's parameters as safetensors",
                                         .run = export_saved});

}  // namespace
}  // namespace shardrun::cli
