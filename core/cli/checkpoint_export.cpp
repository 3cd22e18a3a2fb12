#include <fmt/format.h>

#include <array>
#include <boost/json.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/standard_error.h"
#include "core/base/text.h"
#include "core/checkpoint/export.h"
#include "core/checkpoint/given_weights.h"
#include "core/checkpoint/hub_folder.h"
#include "core/checkpoint/open_checkpoint.h"
#include "core/checkpoint/tensor_source.h"
#include "core/checkpoint/weights.h"
#include "core/cli/options.h"
#include "core/cli/process.h"
#include "core/compile/model.h"
#include "core/compile/plugins.h"
#include "core/files/atomic_file.h"
#include "core/files/folder.h"
#include "core/files/gguf.h"
#include "core/files/mapped_file.h"
#include "core/options/options.h"
#include "core/text/bpe_tokenizer.h"
#include "core/text/gguf_tokenizer.h"

namespace shardrun::cli {
namespace {

constexpr const char* usual_max_bytes = "5G";
constexpr std::size_t most_companion_bytes = std::size_t{256} << 20U;

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

/// Prints what was written. `of`: the model or the step that was exported, for the text.
void print_exported(const checkpoint::Exported& exported, const std::string& of) {
  fmt::print("{} of {}, {}, in\n", counted(exported.tensors, "tensor"), printable(of), human_bytes(exported.bytes));
  for (const std::filesystem::path& file : exported.files) {
    fmt::print("    {}\n", printable(files::human_path(file)));
  }
}

/// Files beside the weights that stay valid when a model is trained further: the tokenizer, its template, and settings
/// of generation.
constexpr std::array<const char*, 9> companion_names = {"generation_config.json",
                                                        "tokenizer.json",
                                                        "tokenizer_config.json",
                                                        "tokenizer.model",
                                                        "special_tokens_map.json",
                                                        "added_tokens.json",
                                                        "vocab.json",
                                                        "merges.txt",
                                                        "chat_template.jinja"};

/// The text of each file, by the file's name.
using Companions = std::map<std::string, std::string>;

/// The companions that can be made from a GGUF file. If its tokenizer cannot be read, prints a note and returns none.
Companions companions_in_gguf(const std::filesystem::path& path) {
  Companions found;
  const files::GgufContents gguf = files::parse_gguf(files::SteadyFile(path));
  try {
    found["tokenizer.json"] = text::BpeTokenizer::from_file(path).json();
  } catch (const Error& error) {
    write_to_standard_error(fmt::format("no tokenizer goes along: {}\n", error.message()));
    return found;
  }
  const text::GgufChat chat = text::gguf_chat(gguf, path.native());
  boost::json::object config{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  for (const auto& [key, token] : {std::pair("bos_token", chat.bos), std::pair("eos_token", chat.eos)}) {
    if (!token.empty()) {
      config[key] = token;
    }
  }
  found["tokenizer_config.json"] = boost::json::serialize(config) + "\n";
  if (!chat.chat_template.empty()) {
    found["chat_template.jinja"] = chat.chat_template;
  }
  return found;
}

Companions companions_of(const std::filesystem::path& origin) {
  if (files::is_gguf(origin)) {
    return companions_in_gguf(origin);
  }
  Companions found;
  for (const char* name : companion_names) {
    if (std::filesystem::exists(origin / name)) {
      found[name] = files::read_text_file(origin / name, most_companion_bytes);
    }
  }
  return found;
}

/// The Hugging Face folder or GGUF file that these weights are in, or from which their run began, if it still exists.
/// Prints a note if it does not.
std::optional<std::filesystem::path> origin_of(const checkpoint::GivenWeights& given) {
  if (given.is_hub()) {
    return given.source().path;
  }
  const std::optional<job::RawJob> job = given.job();
  const job::RawSection* const section = job ? job->find("model") : nullptr;
  const job::RawSetting* const from = section == nullptr ? nullptr : section->find("from");
  if (from == nullptr) {
    return std::nullopt;
  }
  const std::filesystem::path origin = from->folder / from->value;
  if (checkpoint::is_hub_model(origin)) {
    return origin;
  }
  if (!std::filesystem::exists(origin)) {
    write_to_standard_error(
        fmt::format("'{}', which the run began with, is not there: config.json is made from the "
                    "model's options, and no tokenizer goes along\n",
                    printable(origin.native())));
  }
  return std::nullopt;
}

/// Throws Error{usage} if the export would overwrite files in the folder, or leave files of another model there.
void require_free(const std::filesystem::path& folder, const std::optional<std::filesystem::path>& origin,
                  const Companions& companions) {
  std::error_code none;
  if (origin && std::filesystem::equivalent(folder, *origin, none)) {
    throw Error(ErrorCode::usage, fmt::format("'{}' is the folder that the run began with, and its weights would be "
                                              "replaced: name another folder",
                                              folder.native()));
  }
  for (const char* name : companion_names) {
    if (std::filesystem::exists(folder / name, none) && !companions.contains(name)) {
      throw Error(ErrorCode::usage,
                  fmt::format("'{}' has a {}, which is not of this model: remove it, or name another folder",
                              folder.native(), name));
    }
  }
}

/// Whether the origin's model is the trained one, except that the length of sequences can differ.
bool is_same_model(const checkpoint::TensorSource& origin, const checkpoint::TrainedModel& trained,
                   const workload::Models& models) {
  OptionValues options = checkpoint::read_model(origin, models).settings.options;
  if (options.has("context") && trained.settings.options.has("context")) {
    options.set("context", trained.settings.options.integer("context"));
  }
  return to_string(options) == to_string(trained.settings.options);
}

/// Exports a folder in the form of Hugging Face's libraries.
int export_hub_folder(const Parsed& parsed, const std::filesystem::path& folder, checkpoint::ExportSettings settings) {
  std::vector<std::filesystem::path> folders = given_plugins(parsed);
  const checkpoint::GivenWeights given(parsed.positional[0], compile::models_in(compile::directories_of(folders)));
  given.check();
  if (const std::optional<job::RawJob> job = given.job()) {
    std::ranges::copy(job::plugin_path(*job), std::back_inserter(folders));
  }
  const workload::Models models = compile::models_in(compile::directories_of(folders));
  const checkpoint::TrainedModel trained = checkpoint::read_model(given.source(), models);
  const checkpoint::TensorSource source = checkpoint::hub_tensors(given.source(), trained.model, trained.settings);
  const std::optional<std::filesystem::path> origin = origin_of(given);
  const Companions companions = origin ? companions_of(*origin) : Companions();
  require_free(folder, origin, companions);
  std::optional<checkpoint::HubFolder> begun_with;
  if (origin) {
    begun_with.emplace(*origin, models);
    const std::vector<checkpoint::TensorInfo>& tensors = begun_with->source().tensors;
    settings.type = settings.type || tensors.empty() ? settings.type : std::optional(tensors.front().dtype);
  }
  const checkpoint::DType type =
      settings.type.value_or(source.tensors.empty() ? checkpoint::DType::f32 : source.tensors.front().dtype);
  const std::string config = begun_with && is_same_model(begun_with->source(), trained, models)
                                 ? begun_with->config(type)
                                 : checkpoint::hub_config(trained.model, trained.settings, type);
  // Without config.json a folder is no model. So readers refuse a folder whose export was interrupted.
  std::filesystem::remove(folder / "config.json");
  checkpoint::Exported exported = checkpoint::export_folder(source, folder, settings);
  for (const auto& [name, text] : companions) {
    files::write_file_atomically(folder / name, text);
    exported.files.push_back(folder / name);
  }
  files::write_file_atomically(folder / "config.json", config);
  exported.files.push_back(folder / "config.json");
  print_exported(exported,
                 given.step() > 0 ? fmt::format("{}, step {}", trained.model.name, given.step()) : trained.model.name);
  return 0;
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
       {.name = "hub",
        .help = "a folder as Hugging Face's libraries write it: with config.json, and their names of tensors; PATH may "
                "also be a run's folder or a weights file"},
       {.name = "all", .help = "also the states of the optimizer and of the strategy"},
       {.name = "type",
        .value = "f32|bf16",
        .help = "of real numbers (default: as stored; parameters are stored as f32)"},
       replace_option(),
       needing("hub", plugins_option())},
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
  if (is_file) {
    require_new(parsed, output);
  } else if (parsed.has("replace")) {
    throw Error(ErrorCode::usage, fmt::format("checkpoint export: --replace has no effect on the folder '{}', where an "
                                              "earlier export is replaced anyway: leave it out",
                                              output));
  }
  const checkpoint::ExportSettings settings{.max_bytes = max_bytes_of(parsed), .type = type_of(parsed)};
  catch_stop_signals();
  if (parsed.has("hub")) {
    if (is_file || parsed.has("all")) {
      throw Error(ErrorCode::usage,
                  "checkpoint export: --hub writes a folder of parameters: name one with -o, and leave "
                  "out --all");
    }
    return export_hub_folder(parsed, output, settings);
  }
  const checkpoint::OpenCheckpoint opened(checkpoint::find_checkpoint(parsed.positional[0]));
  opened.check_all_files();
  const checkpoint::TensorSource source =
      parsed.has("all") ? checkpoint::states_of(opened) : checkpoint::weights_of(opened);
  const checkpoint::Exported exported = is_file ? checkpoint::export_file(source, output, settings.type)
                                                : checkpoint::export_folder(source, output, settings);
  print_exported(exported, fmt::format("step {}", opened.manifest().step));
  return 0;
}

const RegisterCommand checkpoint_export({.name = "checkpoint export",
                                         .arguments = "PATH -o FILE|FOLDER",
                                         .help = "write a checkpoint's parameters as safetensors",
                                         .run = export_saved});

}  // namespace
}  // namespace shardrun::cli
