#include "core/checkpoint/given_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>

#include "core/base/error.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/weight_blocks.h"
#include "core/checkpoint/weights.h"
#include "core/device/elements.h"
#include "core/device/host_tensor.h"
#include "core/files/mapped_file.h"
#include "core/graph/stored_weights.h"
#include "core/mesh/rows.h"
#include "core/metrics/run_files.h"
#include "core/metrics/summary.h"

namespace shardrun::checkpoint {
namespace {

/// The path of the weights file in a run's folder. Throws Error{usage} if only an iterated run's state is there.
std::filesystem::path weights_in(const std::filesystem::path& run) {
  if (!std::filesystem::exists(metrics::weights_path(run)) && std::filesystem::exists(metrics::state_path(run))) {
    throw Error(ErrorCode::usage,
                fmt::format("'{}' is the folder of an iterated run ([job] task = iterate): it has a state, "
                            "state.safetensors, and no weights; name the folder of a trained run",
                            run.string()));
  }
  return metrics::weights_path(run);
}

/// Throws Error{data} if a folder has no weights of any kind. `weights`: the file that a run would have written.
void require_weights(const std::filesystem::path& folder, const std::filesystem::path& weights) {
  if (std::filesystem::exists(weights)) {
    return;
  }
  throw Error(ErrorCode::data,
              fmt::format("'{}' has no weights: expected {} or checkpoints, as a run writes them, or config.json with "
                          "{} or {}, as Hugging Face's libraries write them; name another folder",
                          folder.native(), weights.filename().native(), one_file_name, index_name));
}

/// Whether the weights are missing, or older than the newest checkpoint of a run that has not finished.
bool are_outdated(const std::filesystem::path& weights, const Listed& newest) {
  std::error_code failed;
  const auto of_weights = std::filesystem::last_write_time(weights, failed);
  if (failed) {
    return true;
  }
  return metrics::text_in_summary(weights.parent_path(), "status") != "finished" &&
         std::filesystem::last_write_time(newest.path / manifest_name) > of_weights;
}

/// Calls `take` with pieces of this rank's part of a tensor, in order. `local`: the index of a piece's first element in
/// the part. Also reads elements between the part's rows: few, or many if the source has slow reads.
void stream_part(const TensorSource& source, std::size_t tensor, const mesh::Box& box,
                 const std::function<void(std::int64_t local, std::span<const float> values)>& take) {
  // The largest gap between two rows, in elements, for which one read over the gap is faster than two reads.
  const std::int64_t most_between = source.has_slow_reads ? elements_at_once : 128;
  // Short reads keep the values in the processor's caches until they are stored in the part.
  const std::int64_t longest_read = source.has_slow_reads ? elements_at_once : elements_at_once / 16;
  std::vector<float> block;
  const std::vector<mesh::Row> rows = mesh::rows_of(source.tensors[tensor].shape, box);
  const auto end_of = [](const auto& row) { return row->whole + row->count; };
  for (auto row = rows.begin(); row != rows.end();) {
    auto last = row;  // the last row that is read together with `row`
    while (last + 1 != rows.end() && (last + 1)->whole - end_of(last) <= most_between &&
           end_of(last + 1) - row->whole <= longest_read) {
      ++last;
    }
    for (std::int64_t first = row->whole; first < end_of(last); first += longest_read) {
      block.resize(static_cast<std::size_t>(std::min(longest_read, end_of(last) - first)));
      read_as_float(source, tensor, first, block);
      // A block contains several rows, or a piece of one long row.
      for (auto of = row; of <= last; ++of) {
        const auto offset = static_cast<std::size_t>(of == row ? 0 : of->whole - first);
        const std::size_t count = row == last ? block.size() : static_cast<std::size_t>(of->count);
        take(of->local + (of == row ? first - row->whole : 0), std::span(block).subspan(offset, count));
      }
    }
    row = last + 1;
  }
}

/// Throws Error{data} with the place of the first value that `dtype` would round to infinity. `values`: elements of
/// this rank's part from index `local` on.
void require_held(const TensorSource& source, std::size_t tensor, const mesh::Box& box, std::int64_t local,
                  std::span<const float> values, graph::DType dtype) {
  const float overflow = device::overflow_of(dtype);
  const auto found = std::ranges::find_if(values, [&](float value) { return std::abs(value) >= overflow; });
  if (found == values.end()) {
    return;
  }
  const TensorInfo& info = source.tensors[tensor];
  throw Error(ErrorCode::data,
              fmt::format("'{}': tensor {} has {} at {}, which {} cannot hold: it would be infinite; keep the weights "
                          "in another type",
                          source.path.native(), info.name, *found,
                          place_of(info, box.index_in_whole(info.shape, local + (found - values.begin()))),
                          graph::to_string(dtype)));
}

/// Loads this rank's parts of states that are all loaded from one tensor, each converted to the state's type.
void load_states(const TensorSource& source, std::size_t tensor, const runtime::Executor& executor,
                 const std::vector<graph::StateId>& ids) {
  const mesh::Box& box = executor.part(ids.front());
  if (box.elements() == 0) {
    return;
  }
  std::vector<std::unique_ptr<device::HostTensor>> states;
  for (const graph::StateId id : ids) {
    states.push_back(std::make_unique<device::HostTensor>(executor.queue(), executor.state(id), device::Access::write));
  }
  stream_part(source, tensor, box, [&](std::int64_t local, std::span<const float> part) {
    for (const std::unique_ptr<device::HostTensor>& state : states) {
      require_held(source, tensor, box, local, part, state->view().rounded);
      device::write_elements(state->view(), local, part);
    }
  });
  for (const std::unique_ptr<device::HostTensor>& state : states) {
    state->store();
  }
}

}  // namespace

GivenWeights::GivenWeights(const std::filesystem::path& path, const workload::Models& models) {
  if (is_hub_model(path)) {
    hub_.emplace(path, models);
    source_ = hub_->source();
  } else if (!std::filesystem::is_directory(path)) {
    open_file(path);
  } else if (const std::vector<Listed> listed = checkpoints_at(path);
             listed.empty() || !are_outdated(weights_in(path), listed.back())) {
    if (const std::filesystem::path job = metrics::job_path(path); std::filesystem::is_regular_file(job)) {
      job_file_ = job;
    }
    require_weights(path, weights_in(path));
    open_file(weights_in(path));
  } else {
    open_checkpoint(find_checkpoint(path), path);
  }
}

void GivenWeights::open_file(const std::filesystem::path& path) {
  file_.emplace(path, hashed_of_weights);
  source_ = *file_;
}

void GivenWeights::open_checkpoint(const std::filesystem::path& path, const std::filesystem::path& given) {
  checkpoint_.emplace(path);
  if (path != given) {
    chosen_ = path;
  }
  source_ = weights_of(*checkpoint_);
}

std::optional<job::RawJob> GivenWeights::job(std::span<const std::string> overrides) const {
  if (checkpoint_) {
    return job::read_job_text(checkpoint_->manifest().job, checkpoint_->path() / manifest_name, overrides);
  }
  if (!job_file_) {
    return std::nullopt;
  }
  job::RawJob raw = job::read_job_file(*job_file_, overrides);
  const auto model = std::ranges::find(raw.sections, "model", &job::RawSection::name);
  const bool is_of_weights = metrics::text_in_summary(job_file_->parent_path(), "saved") == "new";
  if (!is_of_weights && model != raw.sections.end() && !model_of(source_).empty()) {
    *model = job_of(source_).sections.front();  // the job is perhaps that of a later run, of another model
  }
  return raw;
}

void GivenWeights::check() const {
  if (checkpoint_) {
    checkpoint_->check_all_files();
  }
}

std::optional<std::int64_t> GivenWeights::known_context() const {
  if (hub_) {
    return hub_->known_context();
  }
  const job::RawJob raw = job_of(source_);
  const job::RawSection* const model = raw.find("model");
  const job::RawSetting* const setting = model == nullptr ? nullptr : model->find("context");
  std::int64_t context = 0;
  if (setting != nullptr) {
    std::from_chars(setting->value.data(), setting->value.data() + setting->value.size(), context);
  }
  return context > 0 ? std::optional(context) : std::nullopt;
}

std::string GivenWeights::fingerprint() const {
  return checkpoint_ ? to_string(checkpoint_->hash()) : hub_ ? hub_->fingerprint() : file_->fingerprint();
}

graph::DType type_of_matrices(job::Weights setting, const GivenWeights* weights) {
  switch (setting) {
    case job::Weights::automatic: break;
    case job::Weights::float32: return graph::DType::f32;
    case job::Weights::bfloat16: return graph::DType::bf16;
    case job::Weights::float16: return graph::DType::f16;
    case job::Weights::int8: return graph::DType::i8;
  }
  return weights != nullptr && weights->is_quantised() ? graph::DType::bf16 : graph::DType::f32;
}

graph::DType type_of_activations(job::RealType setting, graph::DType matrices) {
  if (setting == job::RealType::bfloat16 && matrices != graph::DType::bf16) {
    throw Error(ErrorCode::job,
                fmt::format("bfloat16 has no effect with matrices in {}: only products with bfloat16 weights round "
                            "their activations; remove it, or set weights to bfloat16",
                            to_string(matrices)));
  }
  return setting == job::RealType::bfloat16 ? graph::DType::bf16 : graph::DType::f32;
}

void require_model(const TensorSource& source, const std::string& model) {
  if (const std::string found = model_of(source); !found.empty() && found != model) {
    throw Error(ErrorCode::data,
                fmt::format("'{}' holds the model '{}', and the job has '{}': name weights of that model",
                            source.path.native(), found, model));
  }
}

void require_parameters(const TensorSource& source, const graph::Graph& graph) {
  for (const graph::State& state : graph.states) {
    if (state.kind != graph::StateKind::parameter || state.of_parameter.exists()) {
      continue;
    }
    const TensorInfo& info = source.tensors[source.index_of(state.name)];
    const std::vector<std::int64_t> shape = shape_in_files(state);
    if (!is_real(info.dtype) || info.shape != shape) {
      throw Error(ErrorCode::data,
                  fmt::format("'{}': tensor {} should be F32 [{}], found {} [{}]", source.path.string(), state.name,
                              fmt::join(shape, ", "), to_string(info.dtype), fmt::join(info.shape, ", ")));
    }
  }
}

void load_parameters(const TensorSource& given, const graph::Graph& graph, const runtime::Executor& executor) {
  require_parameters(given, graph);
  const TensorSource source = in_blocks(given, graph);
  for (const graph::StateId id : graph.states.ids()) {
    if (graph.states[id].kind != graph::StateKind::parameter || graph.states[id].of_parameter.exists()) {
      continue;
    }
    const std::size_t tensor = source.index_of(graph.states[id].name);
    const graph::StateId master = graph.master_of(id);
    if (master != id && executor.part(master) == executor.part(id)) {
      load_states(source, tensor, executor, {id, master});
      continue;
    }
    load_states(source, tensor, executor, {id});
    // The scales are read next, because the source keeps a converted tensor only until another one is read.
    if (graph.states[id].contracted > 0) {
      const graph::StateId scales = graph::scales_of(graph, id);
      load_states(source, source.index_of(graph.states[scales].name), executor, {scales});
    }
    if (master != id) {
      load_states(source, tensor, executor, {master});
    }
  }
}

}  // namespace shardrun::checkpoint
