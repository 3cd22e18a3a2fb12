#include "core/checkpoint/given_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>
#include <iterator>

#include "core/base/error.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/weights.h"
#include "core/device/elements.h"
#include "core/device/host_tensor.h"
#include "core/files/text_file.h"
#include "core/mesh/rows.h"
#include "core/metrics/run_files.h"

namespace shardrun::checkpoint {
namespace {

/// The weights of a run's folder or, while the run has not ended, its checkpoints.
std::filesystem::path weights_in(const std::filesystem::path& run) {
  if (!std::filesystem::exists(metrics::weights_path(run)) && std::filesystem::exists(metrics::state_path(run))) {
    throw Error(ErrorCode::usage,
                fmt::format("'{}' is the folder of an iterated run ([job] task = iterate): it has a state, "
                            "state.safetensors, and no weights; name the folder of a trained run",
                            run.string()));
  }
  return metrics::weights_path(run);
}

/// Whether the weights are older than the newest checkpoint, because the run has continued since.
bool are_outdated(const std::filesystem::path& weights, const Listed& newest) {
  std::error_code failed;
  const auto of_weights = std::filesystem::last_write_time(weights, failed);
  if (failed) {
    return true;
  }
  std::ifstream file(metrics::summary_path(weights.parent_path()));
  boost::json::error_code wrong;
  const boost::json::value summary = boost::json::parse(std::string(std::istreambuf_iterator<char>(file), {}), wrong);
  const boost::json::object* const fields = wrong ? nullptr : summary.if_object();
  const bool has_finished = fields != nullptr && fields->contains("status") && fields->at("status") == "finished";
  return !has_finished && std::filesystem::last_write_time(newest.path / manifest_name) > of_weights;
}

/// Calls `take` with pieces of this rank's part of a tensor, in order: the number of a piece's first element within the
/// part, and its float32 values. Reads blocks that include elements of others if that takes fewer reads.
void stream_part(const TensorSource& source, std::size_t tensor, const mesh::Box& box,
                 const std::function<void(std::int64_t local, std::span<const float> values)>& take) {
  std::vector<float> block;
  std::int64_t first = 0;  // first element of the block, in the whole tensor
  const TensorInfo& info = source.tensors[tensor];
  const std::vector<mesh::Row> rows = mesh::rows_of(info.shape, box);
  const std::int64_t end = rows.empty() ? 0 : rows.back().whole + rows.back().count;
  for (const mesh::Row& row : rows) {
    for (std::int64_t done = 0; done < row.count;) {
      const std::int64_t at = row.whole + done;
      if (at >= first + static_cast<std::int64_t>(block.size())) {
        first = at;
        block.resize(static_cast<std::size_t>(std::min(elements_at_once, end - first)));
        read_as_float(source, tensor, first, block);
      }
      const auto offset = static_cast<std::size_t>(at - first);
      const std::size_t count = std::min(static_cast<std::size_t>(row.count - done), block.size() - offset);
      take(row.local + done, std::span(block).subspan(offset, count));
      done += static_cast<std::int64_t>(count);
    }
  }
}

}  // namespace

namespace {

/// Loads this rank's part of a state, in the type that the state has there.
void load_state(const TensorSource& source, std::size_t tensor, const runtime::Executor& executor, graph::StateId id) {
  if (executor.part(id).elements() == 0) {
    return;
  }
  device::HostTensor values(executor.queue(), executor.state(id), device::Access::write);
  std::vector<double> converted;
  stream_part(source, tensor, executor.part(id), [&](std::int64_t local, std::span<const float> part) {
    if (values.view().dtype == graph::DType::f32) {
      std::ranges::copy(part, device::elements_of<float>(values.view()).begin() + local);
      return;
    }
    converted.assign(part.begin(), part.end());
    device::write_elements(values.view(), local, converted);
  });
  values.store();
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
    open_file(weights_in(path));
  } else {
    open_checkpoint(find_checkpoint(path), path);
  }
}

void GivenWeights::open_file(const std::filesystem::path& path) {
  file_.emplace(path);
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
  return job_file_ ? std::optional(job::read_job_file(*job_file_, overrides)) : std::nullopt;
}

void GivenWeights::check() const {
  if (checkpoint_) {
    checkpoint_->check_all_files();
  }
}

std::string GivenWeights::fingerprint() const {
  return checkpoint_ ? to_string(checkpoint_->hash()) : hub_ ? hub_->fingerprint() : file_->fingerprint();
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
    if (state.kind != graph::StateKind::parameter) {
      continue;
    }
    const TensorInfo& info = source.tensors[source.index_of(state.name)];
    if (!is_real(info.dtype) || info.shape != state.type.shape) {
      throw Error(ErrorCode::data,
                  fmt::format("'{}': tensor {} should be F32 [{}], found {} [{}]", source.path.string(), state.name,
                              fmt::join(state.type.shape, ", "), to_string(info.dtype), fmt::join(info.shape, ", ")));
    }
  }
}

void load_parameters(const TensorSource& source, const graph::Graph& graph, const runtime::Executor& executor) {
  require_parameters(source, graph);
  for (const graph::StateId id : graph.states.ids()) {
    if (graph.states[id].kind != graph::StateKind::parameter) {
      continue;
    }
    const std::size_t tensor = source.index_of(graph.states[id].name);
    load_state(source, tensor, executor, id);
    if (const graph::StateId master = graph.master_of(id); master != id) {
      load_state(source, tensor, executor, master);
    }
  }
}

}  // namespace shardrun::checkpoint
