#include "core/checkpoint/saved_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/checkpoint/resume.h"
#include "core/device/elements.h"
#include "core/device/host_tensor.h"

namespace shardrun::checkpoint {
namespace {

constexpr const char* step_key = "shardrun.step";

/// Steps of all runs since the first state. Numbers computed from steps stay far from the largest integer.
constexpr std::int64_t most_steps = 1'000'000'000'000'000;

[[noreturn]] void refuse(const job::Job& job, const std::string& what) {
  throw Error(ErrorCode::job, fmt::format("{}: [iterate] from: {}", job.where("iterate", "from"), what));
}

SafetensorsFile open(const job::Job& job) {
  try {
    return SafetensorsFile(saved_state_file(job));
  } catch (const Error& error) {
    refuse(job, error.message() + "; name a state.safetensors that a run has written, or the run's folder");
  }
}

std::string type_text(const TensorInfo& info) {
  return fmt::format("{} [{}]", to_string(info.dtype), fmt::join(info.shape, ", "));
}

/// Copies a rank's part of the whole, one run of consecutive bytes of the file at a time.
void read_part(const SafetensorsFile& file, const Tensor& whole, const mesh::Box& box, const device::TensorView& part) {
  constexpr std::size_t block_bytes = std::size_t{64} << 10U;
  std::vector<std::byte> block;
  std::size_t first = 0;  // of the block, in the tensor
  for (std::int64_t local = 0; local < box.elements(); ++local) {
    const std::size_t at = sizeof(float) * static_cast<std::size_t>(box.index_in_whole(whole.info.shape, local));
    if (at >= first + block.size()) {
      first = at;
      block.resize(std::min(block_bytes, whole.bytes.size() - at));
      file.read(whole, first, block);
    }
    double value = 0;
    device::read_elements(graph::DType::f32, {block.data() + (at - first), sizeof(float)}, {&value, 1});
    device::write_elements(part, local, {&value, 1});
  }
}

std::int64_t step_of_file(const SafetensorsFile& file, const job::Job& job) {
  const auto found = file.metadata().find(step_key);
  if (found == file.metadata().end()) {
    return 0;
  }
  const std::string& text = found->second;
  std::int64_t step = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), step);
  if (failed != std::errc() || end != text.data() + text.size() || step < 0 || step > most_steps) {
    refuse(job, fmt::format("'{}' says that it is of step '{}', which is no number of steps (0 to {})",
                            file.path().string(), text, most_steps));
  }
  return step;
}

/// Returns the file's steps.
std::int64_t check_steps(const job::Job& job, std::int64_t saved) {
  if (job.iterate.steps > most_steps - saved) {
    const std::string after = saved == 0 ? "" : fmt::format(", after the {} of [iterate] from", saved);
    throw Error(ErrorCode::job, fmt::format("{}: [iterate] steps = {}{}: found more than {} steps in all; choose fewer",
                                            job.where("iterate", "steps"), job.iterate.steps, after, most_steps));
  }
  return saved;
}

SavedState check(const job::Job& job, const graph::Graph& graph, const SafetensorsFile& file) {
  const std::int64_t steps = check_steps(job, step_of_file(file, job));
  std::vector<std::string> names;
  for (const graph::State& state : graph.states) {
    if (state.kind != graph::StateKind::field) {
      continue;
    }
    names.push_back(state.name);
    const Tensor* const tensor = file.find(state.name);
    if (tensor == nullptr) {
      refuse(job, fmt::format("'{}' has no tensor '{}', which model {} iterates", file.path().string(), state.name,
                              job.model.name));
    }
    const TensorInfo expected = {state.name, DType::f32, state.type.shape};
    if (tensor->info != expected) {
      refuse(job, fmt::format("'{}': tensor '{}' should be {}, as [model] says, found {}", file.path().string(),
                              state.name, type_text(expected), type_text(tensor->info)));
    }
  }
  for (const Tensor& tensor : file.tensors()) {
    if (std::find(names.begin(), names.end(), tensor.info.name) == names.end()) {
      refuse(job, fmt::format("'{}' has a tensor '{}', which model {} does not have{}; it has {}", file.path().string(),
                              tensor.info.name, job.model.name, did_you_mean(tensor.info.name, names),
                              fmt::join(names, ", ")));
    }
  }
  return {.fingerprint = file.fingerprint(), .steps = steps};
}

}  // namespace

std::filesystem::path saved_state_file(const job::Job& job) {
  std::error_code none;
  const std::filesystem::path& from = job.iterate.from;
  return std::filesystem::is_directory(from, none) ? metrics::state_path(from) : from;
}

Metadata describe_state(std::int64_t steps) { return {{"format", "pt"}, {step_key, std::to_string(steps)}}; }

std::int64_t first_step(const job::Job& job) {
  if (job.task != job::Task::iterate) {
    return 0;
  }
  return check_steps(job, job.iterate.from.empty() ? 0 : step_of_file(open(job), job));
}

std::int64_t last_step(const job::Job& job) {
  return job.task == job::Task::train ? job.train.steps : first_step(job) + job.iterate.steps;
}

SavedState check_saved_state(const job::Job& job, const graph::Graph& graph) {
  if (job.task != job::Task::iterate || job.iterate.from.empty()) {
    return {.fingerprint = "", .steps = first_step(job)};
  }
  return check(job, graph, open(job));
}

SavedState initialize_states(const job::Job& job, const graph::Graph& graph, runtime::Executor& executor) {
  runtime::initialize(graph, job.seed, executor);
  if (job.task != job::Task::iterate || job.iterate.from.empty()) {
    return {};
  }
  const SafetensorsFile file = open(job);
  const SavedState saved = check(job, graph, file);  // the file may be another one by now
  for (const graph::StateId id : graph.states.ids()) {
    if (graph.states[id].kind == graph::StateKind::field) {
      device::HostTensor part(executor.queue(), executor.state(id), device::Access::write);
      read_part(file, file.at(graph.states[id].name), executor.part(id), part.view());
      part.store();
    }
  }
  file.require_unchanged();
  return saved;
}

std::filesystem::path result_path(const job::Job& job) {
  return job.task == job::Task::train ? metrics::weights_path(job.output) : metrics::state_path(job.output);
}

metrics::Kept kept_of(const job::Job& job, const OpenCheckpoint* resumed) {
  std::error_code none;
  if (resumed != nullptr && std::filesystem::equivalent(resumed->path().parent_path(), checkpoint_folder(job), none)) {
    return {.file = {}, .step = resumed->manifest().step, .metrics = true};
  }
  if (job.task != job::Task::iterate || job.iterate.from.empty()) {
    return {};
  }
  const std::filesystem::path file = saved_state_file(job);
  const auto lies_here = [&](const std::filesystem::path& path) {
    return std::filesystem::equivalent(path.parent_path(), job.output, none);
  };
  const bool is_of_this_folder = lies_here(file) || lies_here(std::filesystem::canonical(file, none));
  return is_of_this_folder ? metrics::Kept{.file = file, .step = first_step(job)} : metrics::Kept{};
}

}  // namespace shardrun::checkpoint
