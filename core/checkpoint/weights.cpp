#include "core/checkpoint/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "core/device/host_tensor.h"
#include "core/job/ini.h"
#include "core/job/raw.h"
#include "core/job/section.h"
#include "core/mesh/rows.h"

namespace shardrun::checkpoint {
namespace {

constexpr const char* model_key = "shardrun.model";
constexpr const char* tokenizer_key = "shardrun.tokenizer";

/// Whether the rank at `at` writes its part of the state. Of the ranks that hold the same part, only one writes it. It
/// has coordinate 0 on all axes that do not split the state, and is on the stage that updates the state.
bool writes_part(const partition::Partition& partition, graph::StateId state, const mesh::Coordinates& at) {
  for (const mesh::AxisId axis : at.ids()) {
    if (at[axis] != 0 && axis != partition.pipeline.axis && !partition.placements.states[state].splits(axis)) {
      return false;
    }
  }
  return partition.stage_at(at) == partition.stages.states.owner[state];
}

/// Calls `write` with each row of a part: its offset in the whole tensor, its offset in the rank's memory, and its
/// length. All are bytes of float32.
template <typename Write>
void for_rows(const SavedPart& part, const Write& write) {
  const std::vector<mesh::Row> held = mesh::rows_of(part.whole, part.held.value_or(part.box));
  auto in_memory = held.begin();
  for (const mesh::Row& row : mesh::rows_of(part.whole, part.box)) {
    while (in_memory->whole + in_memory->count <= row.whole) {
      ++in_memory;
    }
    const std::int64_t local = in_memory->local + row.whole - in_memory->whole;
    write(static_cast<std::uint64_t>(row.whole) * sizeof(float), static_cast<std::size_t>(local) * sizeof(float),
          static_cast<std::size_t>(row.count) * sizeof(float));
  }
}

/// The parts of states that `rank` writes, as float32.
std::vector<SavedPart> parts_of_rank(const StateFile& file, const graph::Graph& graph,
                                     const partition::Partition& partition, std::int64_t rank) {
  const partition::Placements& placements = partition.placements;
  const mesh::Coordinates at = mesh::coordinates_of(placements.mesh, rank);
  std::vector<SavedPart> parts;
  for (const graph::StateId id : file.states) {
    const graph::State& state = graph.states[id];
    const graph::StateId values = graph.master_of(id);
    if (writes_part(partition, values, at)) {
      parts.push_back({.tensor = state.name,
                       .whole = state.type.shape,
                       .box = mesh::box_of(state.type.shape, placements.states[values].own(), placements.mesh, at),
                       .state = values,
                       .held = mesh::box_of(state.type.shape, placements.states[values], placements.mesh, at)});
    }
  }
  return parts;
}

/// Writes parts of states. `writer`: a TensorFileWriter or a TensorFilePieces.
template <typename Writer>
void write_parts(Writer& writer, const std::vector<SavedPart>& parts, const runtime::Executor& executor) {
  for (const SavedPart& part : parts) {
    const device::HostTensor values(executor.queue(), executor.state(part.state), device::Access::read);
    for_rows(part, [&](std::uint64_t offset, std::size_t from, std::size_t count) {
      writer.write(part.tensor, offset, values.bytes().subspan(from, count));
    });
  }
}

const std::string& metadata_at(const TensorSource& source, const char* key) {
  const auto found = source.metadata.find(key);
  if (found == source.metadata.end()) {
    throw Error(ErrorCode::data,
                fmt::format("'{}' has no metadata '{}': it was not written by a shardrun job; give the folder or the "
                            "weights.safetensors of one",
                            source.path.string(), key));
  }
  return found->second;
}

}  // namespace

StateFile state_file(std::filesystem::path path, const graph::Graph& graph, graph::StateKind kind,
                     const Metadata& metadata) {
  StateFile file{.path = std::move(path), .states = {}, .layout = {}};
  std::vector<TensorInfo> tensors;
  for (const graph::StateId id : graph.states.ids()) {
    if (graph.states[id].kind == kind) {
      file.states.push_back(id);
      tensors.push_back({graph.states[id].name, DType::f32, graph.states[id].type.shape});
    }
  }
  file.layout = lay_out(std::move(tensors), metadata);
  return file;
}

std::vector<StateFile> output_files(const std::filesystem::path& folder, const graph::Graph& graph,
                                    std::string_view suffix) {
  std::vector<StateFile> files;
  for (const graph::StateId id : graph.states.ids()) {
    const graph::State& state = graph.states[id];
    if (state.kind == graph::StateKind::output) {
      files.push_back({.path = folder / fmt::format("{}{}.npy", state.name, suffix),
                       .states = {id},
                       .layout = lay_out_npy({state.name, DType::f32, state.type.shape})});
    }
  }
  return files;
}

void save_parts(const StateFile& file, std::int64_t ranks,
                const std::function<std::vector<SavedPart>(std::int64_t rank)>& parts_of,
                const runtime::Executor& executor, std::int64_t rank, const SaveCallbacks& callbacks) {
  if (executor.device().stored(graph::DType::f32) != graph::DType::f32) {
    throw Error(ErrorCode::internal, fmt::format("states of device {} are not float32", executor.device().name()));
  }
  std::optional<TensorFileWriter> whole;
  if (rank == 0) {
    whole.emplace(file.path, file.layout);
  }
  callbacks.await_ranks();  // all ranks wait until the first one has made the file
  if (whole) {
    write_parts(*whole, parts_of(rank), executor);
  } else {
    TensorFilePieces pieces(file.path, file.layout);
    write_parts(pieces, parts_of(rank), executor);
    pieces.finish();
  }
  callbacks.parts_are_written();
  callbacks.await_ranks();  // the first rank commits once all have written their parts
  if (whole) {
    for (std::int64_t other = 1; other < ranks; ++other) {
      for (const SavedPart& part : parts_of(other)) {
        for_rows(part, [&](std::uint64_t offset, std::size_t, std::size_t count) {
          whole->leave(part.tensor, offset, count);
        });
      }
    }
    callbacks.before_commit();
    whole->commit();
  }
  callbacks.await_ranks();
}

void save_states(const StateFile& file, const graph::Graph& graph, const partition::Partition& partition,
                 const runtime::Executor& executor, std::int64_t rank, const SaveCallbacks& callbacks) {
  save_parts(
      file, partition.placements.mesh.ranks(),
      [&](std::int64_t of) { return parts_of_rank(file, graph, partition, of); }, executor, rank, callbacks);
}

std::string model_section(const workload::Model& model, const workload::ModelSettings& settings) {
  std::string section = fmt::format("[model]\nname = {}\n{}", model.name, to_string(settings.options));
  const bool takes_vocab = std::any_of(model.options.begin(), model.options.end(),
                                       [](const OptionSpec& spec) { return spec.name == "vocab"; });
  if (takes_vocab && !settings.options.has("vocab")) {
    section += fmt::format("vocab = {}\n", settings.data.vocab);
  }
  if (const workload::DataShape& data = settings.data; data.features > 0) {
    section += fmt::format("\n[trained_on]\nfeatures = {}\noutputs = {}\nvocab = {}\n", data.features, data.outputs,
                           data.vocab);
  }
  return section;
}

Metadata describe_model(const workload::Model& model, const workload::ModelSettings& settings,
                        const data::Tokenizer* tokenizer) {
  return describe_model(model_section(model, settings), tokenizer == nullptr ? "" : tokenizer->to_json());
}

Metadata describe_model(const std::string& section, const std::string& tokenizer) {
  Metadata metadata{{"format", "pt"}, {model_key, section}};
  if (!tokenizer.empty()) {
    metadata[tokenizer_key] = tokenizer;
  }
  return metadata;
}

namespace {

/// A job with the sections [model] and [trained_on] of the metadata. It is empty if the metadata has none.
job::RawJob described(const TensorSource& source) {
  job::RawJob raw;
  if (const auto found = source.metadata.find(model_key); found != source.metadata.end()) {
    raw.sections = job::parse_ini(found->second, source.path.string()).sections;
  }
  return raw;
}

std::string value_of(const job::RawJob& raw, std::string_view section, std::string_view key) {
  const job::RawSection* const found = raw.find(section);
  const job::RawSetting* const setting = found == nullptr ? nullptr : found->find(key);
  return setting == nullptr ? "" : setting->value;
}

}  // namespace

std::string model_of(const TensorSource& source) { return value_of(described(source), "model", "name"); }

job::RawJob job_of(const TensorSource& source) {
  static_cast<void>(metadata_at(source, model_key));
  job::RawJob raw = described(source);
  std::erase_if(raw.sections, [](const job::RawSection& section) { return section.name != "model"; });
  return raw;
}

workload::DataShape trained_on(const TensorSource& source) {
  const job::RawJob raw = described(source);
  const auto size_of = [&](std::string_view section, std::string_view key) {
    const std::string text = value_of(raw, section, key);
    std::int64_t size = 0;
    std::from_chars(text.data(), text.data() + text.size(), size);
    return std::max<std::int64_t>(size, 0);
  };
  if (raw.find("trained_on") == nullptr) {
    return {.vocab = size_of("model", "vocab")};
  }
  return {.vocab = size_of("trained_on", "vocab"),
          .features = size_of("trained_on", "features"),
          .outputs = size_of("trained_on", "outputs")};
}

TrainedModel read_model(const TensorSource& source, const workload::Models& models) {
  job::RawJob raw;
  raw.sections = job::parse_ini(metadata_at(source, model_key), source.path.string()).sections;
  const job::RawSection* section = raw.find("model");
  const job::RawSetting* name = section == nullptr ? nullptr : section->find("name");
  std::optional<workload::Model> model = name == nullptr ? std::nullopt : models.find(name->value);
  if (!model) {
    throw Error(ErrorCode::data,
                fmt::format("'{}' holds the model '{}', which this version does not have; it has {}",
                            source.path.string(), name == nullptr ? "" : name->value, fmt::join(models.names(), ", ")));
  }
  TrainedModel trained{.model = *std::move(model)};
  std::vector<std::pair<std::string_view, std::string_view>> settings;
  for (const job::RawSetting& setting : section->settings) {
    if (setting.key != "name") {
      settings.emplace_back(setting.key, setting.value);
    }
  }
  trained.settings.options = job::make_options(trained.model.options, settings);
  if (source.metadata.contains(tokenizer_key)) {
    trained.tokenizer = data::Tokenizer::from_json(metadata_at(source, tokenizer_key));
    trained.settings.data.vocab = trained.tokenizer->vocabulary();
  } else {
    trained.settings.data = trained_on(source);
  }
  return trained;
}

}  // namespace shardrun::checkpoint
