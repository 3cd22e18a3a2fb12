#include "core/checkpoint/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/checkpoint/contents.h"
#include "core/checkpoint/folder.h"
#include "core/checkpoint/weights.h"
#include "core/data/dataset.h"
#include "core/device/elements.h"
#include "core/device/host_tensor.h"
#include "core/files/folder.h"

namespace shardrun::checkpoint {
namespace {

[[noreturn]] void refuse_resume(const job::Job& job, const std::string& what) {
  throw Error(ErrorCode::job, fmt::format("{}: [checkpoint] resume: {}", job.where("checkpoint", "resume"), what));
}

std::string difference_text(const OpenCheckpoint& checkpoint, std::string_view what, std::string_view saved,
                            std::string_view now) {
  return fmt::format("'{}' was saved with the {} {}, and this job has {}", files::shown(checkpoint.path()).native(),
                     what, saved, now);
}

[[noreturn]] void refuse_other(const job::Job& job, const OpenCheckpoint& checkpoint, std::string_view what,
                               std::string_view saved, std::string_view now, std::string_view advice) {
  refuse_resume(job, fmt::format("{}: {}", difference_text(checkpoint, what, saved, now), advice));
}

/// The part of `text` around its first difference from `other`.
std::string part_that_differs(const std::string& text, const std::string& other) {
  constexpr std::size_t before = 20;
  constexpr std::size_t length = 60;
  const auto [in_text, in_other] = std::ranges::mismatch(text, other);
  const auto whole = [&](std::size_t at) {  // moves an offset back to the beginning of a UTF-8 character
    while (at > 0 && at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U) {
      --at;
    }
    return std::min(at, text.size());
  };
  const auto at = static_cast<std::size_t>(in_text - text.begin());
  const std::size_t begin = whole(at < length ? 0 : at - before);
  const std::size_t end = whole(begin + length);
  return fmt::format("{}{}{}", begin == 0 ? "" : "…", text.substr(begin, end - begin), end < text.size() ? "…" : "");
}

/// The files of the data as text: "'corpus.txt' (1115394 bytes, hash 9d2c5681a3b0c7f4)".
std::string data_text(const job::Job& job, const std::vector<std::string>& fingerprints) {
  const std::vector<std::filesystem::path> files = data::data_files(job);
  std::string text;
  for (std::size_t i = 0; i < fingerprints.size(); ++i) {
    text += text.empty() ? "" : "; ";
    text += i < files.size() ? fmt::format("'{}' ({})", files[i].native(), fingerprints[i]) : fingerprints[i];
  }
  return text;
}

/// The lines of `text` that `other` does not have, joined to one line.
std::string lines_without(const std::string& text, const std::string& other) {
  std::vector<std::string_view> lines;
  const std::string_view all = text;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find('\n', at), all.size());
    const std::string_view line = all.substr(at, end - at);
    if (("\n" + other + "\n").find(fmt::format("\n{}\n", line)) == std::string::npos) {
      lines.push_back(line);
    }
    at = end + 1;
  }
  return fmt::format("'{}'", fmt::join(lines, ", "));
}

std::string type_text(DType dtype, const std::vector<std::int64_t>& shape) {
  return fmt::format("{} [{}]", to_string(dtype), fmt::join(shape, ", "));
}

/// The number of elements converted at once.
constexpr std::int64_t block_elements = std::int64_t{1} << 16U;

/// Loads a state from a tensor that has another element type.
void convert(const OpenCheckpoint& checkpoint, const StoredTensor& tensor, const mesh::Box& part,
             const device::TensorView& view) {
  const graph::DType from = loaded_type(tensor.dtype);
  const std::size_t element = element_bytes(tensor.dtype);
  std::vector<std::byte> bytes(static_cast<std::size_t>(part.elements()) * element);
  checkpoint.read(tensor, part, bytes);
  std::vector<double> values;
  for (std::int64_t first = 0; first < part.elements(); first += block_elements) {
    values.resize(static_cast<std::size_t>(std::min(block_elements, part.elements() - first)));
    device::read_elements(
        from, std::span(bytes).subspan(static_cast<std::size_t>(first) * element, values.size() * element), values);
    device::write_elements(view, first, values);
  }
}

/// The tensor with a state's values for the rank at `at`; null if the checkpoint has none. If the state now varies
/// between ranks, but did not when it was saved, all ranks get the same tensor.
const StoredTensor* tensor_of(const OpenCheckpoint& checkpoint, const graph::State& named,
                              const mesh::Placement& placement, const mesh::Mesh& mesh, const mesh::Coordinates& at) {
  const StoredTensor* const own = checkpoint.find(stored_name(named, placement, mesh, at));
  return own != nullptr ? own : checkpoint.find(named.name);
}

/// Whether a state is loaded from the checkpoint. All states are, except a hook's state that the checkpoint lacks, or
/// has with another shape, for some rank.
bool goes_along(const OpenCheckpoint& checkpoint, const graph::Graph& graph, const partition::Placements& placements,
                graph::StateId id) {
  if (role_of(graph, id) != TensorRole::hook) {
    return true;
  }
  for (std::int64_t rank = 0; rank < placements.mesh.ranks(); ++rank) {
    const StoredTensor* const tensor = tensor_of(checkpoint, graph.states[id], placements.states[id], placements.mesh,
                                                 mesh::coordinates_of(placements.mesh, rank));
    if (tensor == nullptr || tensor->role != TensorRole::hook || tensor->shape != graph.states[id].type.shape) {
      return false;
    }
  }
  return true;
}

/// The first few of many names, for messages.
std::string some_of(const std::set<std::string>& names) {
  constexpr std::size_t most = 3;
  if (names.size() <= most + 1) {
    return fmt::format("{}", fmt::join(names, ", "));
  }
  return fmt::format("{} and {} more", fmt::join(names.begin(), std::next(names.begin(), most), ", "),
                     names.size() - most);
}

/// Compares the checkpoint's states with the job's. run() throws Error{job} if they do not fit. It returns notices for
/// the user about hook states that only one of them has.
class StateCheck {
 public:
  StateCheck(const job::Job& job, const OpenCheckpoint& checkpoint, const graph::Graph& graph,
             const partition::Partition& partition)
      : job_(job), checkpoint_(checkpoint), graph_(graph), placements_(partition.placements) {}

  std::vector<std::string> run() {
    for (const graph::StateId id : graph_.states.ids()) {
      if (role_of(graph_, id)) {
        check(id);
      }
    }
    std::set<std::string> dropped;
    for (const StoredTensor& tensor : checkpoint_.manifest().tensors) {
      if (used_.contains(tensor.name)) {
        continue;
      }
      const std::string name = tensor.name.substr(0, tensor.name.find('@'));
      if (tensor.role != TensorRole::hook && name != tensor.name) {
        refuse_varying(tensor);
      }
      if (tensor.role != TensorRole::hook) {
        refuse(fmt::format("has the {} {}, which this job does not have", to_string(tensor.role), name));
      }
      dropped.insert(name);
    }
    std::vector<std::string> notices;
    if (!dropped.empty()) {
      notices.push_back(
          fmt::format("not taken from the checkpoint, because strategy {} has no such states for its ranks: {}",
                      job_.strategy.name, some_of(dropped)));
    }
    if (!begun_.empty()) {
      notices.push_back(fmt::format("not in the checkpoint, which strategy {} wrote, and begun anew: {}",
                                    checkpoint_.manifest().strategy, some_of(begun_)));
    }
    return notices;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    refuse_resume(job_, fmt::format("'{}' {}", files::shown(checkpoint_.path()).native(), what));
  }

  void check(graph::StateId id) {
    const graph::State& named = graph_.states[id];
    const mesh::Placement& placement = placements_.states[graph_.master_of(id)];
    if (!goes_along(checkpoint_, graph_, placements_, id)) {
      begun_.insert(named.name);
      return;
    }
    const std::int64_t ranks = placement.varying.empty() ? 1 : placements_.mesh.ranks();
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const StoredTensor* const tensor =
          tensor_of(checkpoint_, named, placement, placements_.mesh, mesh::coordinates_of(placements_.mesh, rank));
      if (tensor == nullptr) {
        refuse_missing(named, *role_of(graph_, id));
      }
      if (tensor->shape != named.type.shape) {
        refuse(fmt::format("has {} as {}, and this job has it as [{}]", tensor->name,
                           type_text(tensor->dtype, tensor->shape), fmt::join(named.type.shape, ", ")));
      }
      static_cast<void>(loaded_type(tensor->dtype));
      used_.insert(tensor->name);
    }
  }

  /// Throws Error{job} that says that each rank saved its own values of a state, and that this job has other ranks.
  /// `tensor`: one rank's values.
  [[noreturn]] void refuse_varying(const StoredTensor& tensor) const {
    refuse(
        fmt::format("has the {} {} for each rank of strategy {} on its own ({}), and no other ranks can take them: go "
                    "on with the strategy and mesh that saved it ({})",
                    to_string(tensor.role), tensor.name.substr(0, tensor.name.find('@')),
                    checkpoint_.manifest().strategy, tensor.name, checkpoint_.manifest().mesh));
  }

  [[noreturn]] void refuse_missing(const graph::State& named, TensorRole role) const {
    for (const StoredTensor& tensor : checkpoint_.manifest().tensors) {
      if (tensor.name.starts_with(named.name + "@")) {
        refuse_varying(tensor);
      }
    }
    refuse(fmt::format("has no {} {}, which this job has", to_string(role), named.name));
  }

  const job::Job& job_;
  const OpenCheckpoint& checkpoint_;
  const graph::Graph& graph_;
  const partition::Placements& placements_;
  std::set<std::string_view> used_;
  std::set<std::string> begun_;
};

/// The line that names the model, or the engine if there is one, in the text of a job file's section.
std::string_view name_in(std::string_view section) {
  const std::string_view key = section.find("\nengine = ") == std::string_view::npos ? "name = " : "\nengine = ";
  const std::size_t begin = section.find(key);
  return begin == std::string_view::npos ? "" : section.substr(begin, section.find('\n', begin + 1) - begin);
}

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

/// Describes the first tensor whose shapes differ in the checkpoint and in the job, or that only one of them has. Empty
/// if there is none.
std::string first_difference(const Shapes& saved, const Shapes& needed) {
  const auto shape_of = [](const Shapes& shapes, const std::string& name) {
    const auto found = shapes.find(name);
    return found == shapes.end() ? "none" : fmt::format("[{}]", fmt::join(found->second, ", "));
  };
  Shapes all = saved;
  all.insert(needed.begin(), needed.end());
  for (const auto& [name, shape] : all) {
    if (const std::string before = shape_of(saved, name), now = shape_of(needed, name); before != now) {
      return fmt::format("{} is {} in the checkpoint and {} in this job", name, before, now);
    }
  }
  return "";
}

/// Describes the first difference between a checkpoint's parameters and fields and those of a graph;
/// empty if there is none.
std::string first_difference(const OpenCheckpoint& checkpoint, const graph::Graph& graph) {
  Shapes saved;
  for (const StoredTensor& tensor : checkpoint.manifest().tensors) {
    if (tensor.role == TensorRole::parameter || tensor.role == TensorRole::field) {
      saved.emplace(tensor.name.substr(0, tensor.name.find('@')), tensor.shape);
    }
  }
  Shapes needed;
  for (const graph::StateId id : graph.states.ids()) {
    const std::optional<TensorRole> role = role_of(graph, id);
    if (role == TensorRole::parameter || role == TensorRole::field) {
      needed.emplace(graph.states[id].name, graph.states[id].type.shape);
    }
  }
  return first_difference(saved, needed);
}

std::string optimizer_of(const job::Job& job) {
  if (job.task != job::Task::train) {
    return "";
  }
  return job.train.optimizer == job::Optimizer::adamw ? "adamw" : job.train.momentum > 0 ? "sgd with momentum" : "sgd";
}

std::string split_of(const job::Job& job) {
  const job::DataSettings& data = job.data;
  const bool has_validation =
      !data.validation_text.empty() || !data.validation_tokens.empty() || !data.validation_arrays.empty();
  return job.task != job::Task::train ? "" : has_validation ? "files of their own" : fmt::format("{}", data.split);
}

}  // namespace

std::int64_t samples_after(const job::Job& job, const Position& first, std::int64_t steps) noexcept {
  return job.task == job::Task::train || job::has_data(job) ? first.samples + (steps - first.step) * job.data.batch : 0;
}

std::filesystem::path checkpoint_folder(const job::Job& job) {
  return job.checkpoints.folder.empty() ? job.output / "checkpoints" : job.checkpoints.folder;
}

NewestCheckpoint newest_checkpoint(const std::filesystem::path& root) {
  NewestCheckpoint newest;
  const std::vector<Listed> listed = list_checkpoints(root);
  for (auto each = listed.rbegin(); each != listed.rend() && newest.path.empty(); ++each) {
    try {
      newest.step = OpenCheckpoint(each->path).manifest().step;
      newest.path = each->path;
    } catch (const Error& error) {
      newest.damaged.push_back(error.message());
    }
  }
  return newest;
}

void require_readable(const job::Job& job, const NewestCheckpoint& newest) {
  const std::filesystem::path root = checkpoint_folder(job);
  const std::vector<std::filesystem::path> aside = checkpoints_set_aside(root);
  const std::size_t count = newest.damaged.size() + aside.size();
  if (!newest.path.empty() || count == 0) {
    return;
  }
  const std::string first = newest.damaged.empty()
                                ? fmt::format("'{}' is damaged and was set aside", files::shown(aside.front()).native())
                                : newest.damaged.front();
  refuse_resume(
      job, fmt::format("{} in '{}', and none can be read ({}): remove what is there to begin at the start, or "
                       "choose another [checkpoint] folder or [job] output",
                       counted(static_cast<std::int64_t>(count), "checkpoint"), files::shown(root).native(), first));
}

std::filesystem::path checkpoint_to_resume(const job::Job& job, std::vector<std::string>& notices) {
  const std::string& resume = job.checkpoints.resume;
  if (resume == "never") {
    return {};
  }
  if (resume != "auto") {
    try {
      return find_checkpoint(resume);
    } catch (const Error& error) {
      refuse_resume(job, error.message());
    }
  }
  const std::filesystem::path root = checkpoint_folder(job);
  const NewestCheckpoint newest = newest_checkpoint(root);
  for (const std::string& damaged : newest.damaged) {
    notices.push_back(fmt::format("warning: passes by a damaged checkpoint: {}", damaged));
  }
  require_readable(job, newest);
  if (newest.path.empty()) {
    notices.push_back(fmt::format("no checkpoint in '{}': begins at the start", files::shown(root).native()));
  }
  return newest.path;
}

void require_newest(const job::Job& job, std::int64_t step) {
  const std::filesystem::path folder = job.checkpoints.used ? checkpoint_folder(job) : job.output / "checkpoints";
  const NewestCheckpoint newest = newest_checkpoint(folder);
  if (step == 0) {
    require_readable(job, newest);
  }
  if (newest.path.empty() || newest.step <= step) {
    return;
  }
  const bool can_replace = step == 0 && !replaced_checkpoints(job).empty();
  refuse_resume(
      job, fmt::format("this run would begin {}, and '{}' has a checkpoint of step {} already, which it would "
                       "replace: go on from the newest one with --resume, or choose another [checkpoint] "
                       "folder or [job] output, or remove what is there{}",
                       step == 0 ? "at the start" : fmt::format("after step {}", step), files::shown(folder).native(),
                       newest.step, can_replace ? " with --replace" : ""));
}

std::filesystem::path replaced_checkpoints(const job::Job& job) {
  return job.checkpoints.used && !job.checkpoints.folder.empty() ? std::filesystem::path() : job.output / "checkpoints";
}

RunIdentity identity_of(const job::Job& job, std::string model, const data::Dataset* dataset) {
  return {.task = job.task == job::Task::train ? "train" : "iterate",
          .model = std::move(model),
          .optimizer = optimizer_of(job),
          .tokenizer = dataset == nullptr || dataset->tokenizer() == nullptr ? "" : dataset->tokenizer()->to_json(),
          .data = dataset == nullptr ? std::vector<std::string>() : dataset->fingerprints(),
          .split = split_of(job),
          .seed = job.seed};
}

namespace {

/// Compares a checkpoint with the job, and returns notices. `difference`: the text of first_difference().
std::vector<std::string> compare_runs(const job::Job& job, const OpenCheckpoint& checkpoint, const RunIdentity& run,
                                      const std::string& difference) {
  const RunIdentity& saved = checkpoint.manifest().run;
  const auto require_same = [&](std::string_view what, const std::string& before, const std::string& now,
                                std::string_view advice) {
    if (before != now) {
      refuse_other(job, checkpoint, what, before, now, advice);
    }
  };
  require_same("task", saved.task, run.task, "a checkpoint goes on only with its own");
  std::vector<std::string> notices;
  // The section [trained_on] is left out: the data is compared separately, and older checkpoints lack this section.
  const auto own_section = [](const std::string& model) { return model.substr(0, model.find("\n[trained_on]")); };
  if (own_section(saved.model) != own_section(run.model)) {
    const std::string before = lines_without(own_section(saved.model), own_section(run.model));
    const std::string now = lines_without(own_section(run.model), own_section(saved.model));
    if (name_in(saved.model) != name_in(run.model) || !difference.empty()) {
      refuse_other(job, checkpoint, "model", before, now,
                   (difference.empty() ? "" : difference + "; ") + "go on with the same model and options");
    }
    notices.push_back(
        fmt::format("warning: {}: it has the same parameters, and the steps that follow are computed "
                    "with the new options",
                    difference_text(checkpoint, "model", before, now)));
  }
  require_same("optimizer", saved.optimizer, run.optimizer, "its states would be missing");
  const auto compare_data = [&](std::string_view what, bool is_same, const std::string& before,
                                const std::string& now) {
    if (is_same) {
      return;
    }
    if (!job.checkpoints.force_data) {
      refuse_other(job, checkpoint, what, before, now,
                   "the samples that were not seen yet would be others; --force-data accepts that");
    }
    notices.push_back(fmt::format("warning: {}: the samples that follow are others, as --force-data accepts",
                                  difference_text(checkpoint, what, before, now)));
  };
  compare_data("data", saved.data == run.data, fmt::format("{}", fmt::join(saved.data, "; ")),
               data_text(job, run.data));
  compare_data("tokenizer", saved.tokenizer == run.tokenizer, part_that_differs(saved.tokenizer, run.tokenizer),
               part_that_differs(run.tokenizer, saved.tokenizer));
  compare_data("[data] split", saved.split == run.split, saved.split, run.split);
  compare_data("seed", saved.seed == run.seed, fmt::format("{}", saved.seed), fmt::format("{}", run.seed));
  return notices;
}

/// Loads a state of this rank from a tensor. `box`: the rank's part of the tensor.
void load_part(const OpenCheckpoint& checkpoint, const StoredTensor& tensor, const mesh::Box& box,
               const runtime::Executor& executor, graph::StateId state) {
  if (box.elements() == 0) {
    return;
  }
  device::HostTensor part(executor.queue(), executor.state(state), device::Access::write);
  if (part.view().dtype == loaded_type(tensor.dtype)) {
    checkpoint.read(tensor, box, part.bytes());
  } else {
    convert(checkpoint, tensor, box, part.view());
  }
  part.store();
}

}  // namespace

std::vector<std::string> check_resumed(const job::Job& job, const OpenCheckpoint& checkpoint, const RunIdentity& run,
                                       const graph::Graph& graph, const partition::Partition& partition) {
  std::vector<std::string> notices = compare_runs(job, checkpoint, run, first_difference(checkpoint, graph));
  std::ranges::move(StateCheck(job, checkpoint, graph, partition).run(), std::back_inserter(notices));
  return notices;
}

std::vector<std::string> check_resumed(const job::Job& job, const OpenCheckpoint& checkpoint, const RunIdentity& run,
                                       const std::vector<HeldTensor>& tensors) {
  Shapes saved;
  for (const StoredTensor& tensor : checkpoint.manifest().tensors) {
    saved.emplace(tensor.name, tensor.shape);
  }
  Shapes needed;
  for (const HeldTensor& held : tensors) {
    needed.emplace(held.saved.tensor.name, held.saved.tensor.shape);
  }
  std::vector<std::string> notices = compare_runs(job, checkpoint, run, first_difference(saved, needed));
  for (const auto& [name, shape] : needed) {
    if (const auto found = saved.find(name); found == saved.end() || found->second != shape) {
      refuse_resume(job,
                    fmt::format("'{}' has {}, and this job has {} [{}]", files::shown(checkpoint.path()).native(),
                                found == saved.end() ? fmt::format("no state {}", name)
                                                     : fmt::format("{} [{}]", name, fmt::join(found->second, ", ")),
                                name, fmt::join(shape, ", ")));
    }
    saved.erase(name);
  }
  if (!saved.empty()) {
    refuse_resume(job, fmt::format("'{}' has a state {}, which this job does not have",
                                   files::shown(checkpoint.path()).native(), saved.begin()->first));
  }
  return notices;
}

void load_states(const OpenCheckpoint& checkpoint, const graph::Graph& graph, const partition::Partition& partition,
                 const runtime::Executor& executor, std::int64_t rank) {
  const mesh::Mesh& mesh = partition.placements.mesh;
  const mesh::Coordinates at = mesh::coordinates_of(mesh, rank);
  for (const graph::StateId id : graph.states.ids()) {
    if (!role_of(graph, id) || !goes_along(checkpoint, graph, partition.placements, id)) {
      continue;
    }
    const graph::StateId values = graph.master_of(id);
    const StoredTensor* const tensor =
        tensor_of(checkpoint, graph.states[id], partition.placements.states[values], mesh, at);
    for (const graph::StateId state : std::set<graph::StateId>{id, values}) {
      load_part(checkpoint, *tensor, executor.part(state), executor, state);
    }
  }
}

void load_states(const OpenCheckpoint& checkpoint, const std::vector<HeldTensor>& tensors,
                 const runtime::Executor& executor, std::int64_t rank) {
  for (const HeldTensor& held : tensors) {
    for (const HeldTensor::Part& part : held.parts) {
      if (std::ranges::find(part.ranks, static_cast<std::size_t>(rank)) != part.ranks.end()) {
        load_part(checkpoint, *checkpoint.find(held.saved.tensor.name), part.box, executor, held.saved.state);
      }
    }
  }
}

}  // namespace shardrun::checkpoint
