#include "core/checkpoint/import.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/checkpoint/contents.h"
#include "core/checkpoint/folder.h"
#include "core/device/elements.h"
#include "core/files/folder.h"
#include "core/files/sequential_file.h"

namespace shardrun::checkpoint {
namespace {

/// A tensor of the new checkpoint, and where its values come from.
struct Imported {
  StoredTensor tensor;
  std::optional<std::size_t> source;  ///< index of the tensor in the source
  double constant = 0;                ///< value of all elements if the source has no such tensor
};

std::vector<Imported> imported_states(const graph::Graph& graph, const device::Device& device) {
  std::vector<Imported> states;
  for (const graph::StateId id : graph.states.ids()) {
    const std::optional<TensorRole> role = role_of(graph, id);
    if (!role || *role == TensorRole::hook) {
      continue;
    }
    const graph::State& state = graph.states[id];
    if (*role == TensorRole::optimizer && state.initializer.kind != graph::Initializer::Kind::constant) {
      throw Error(ErrorCode::internal, fmt::format("optimizer state {} does not begin as a constant", state.name));
    }
    const graph::DType dtype = device.stored(graph.states[graph.master_of(id)].type.dtype);
    states.push_back(
        {.tensor =
             {.name = state.name, .role = *role, .dtype = stored_type(dtype), .shape = state.type.shape, .pieces = {}},
         .source = {},
         .constant = state.initializer.value});
  }
  return states;
}

/// Finds the source's tensor for each state. Optimizer states that the source lacks are no difference. Throws
/// Error{data} that lists every difference.
void match(const TensorSource& source, std::vector<Imported>& states) {
  std::map<std::string_view, std::size_t> by_name;
  for (std::size_t i = 0; i < source.tensors.size(); ++i) {
    by_name[source.tensors[i].name] = i;
  }
  std::vector<std::string> differences;
  for (Imported& state : states) {
    const auto found = by_name.find(state.tensor.name);
    if (found == by_name.end() && state.tensor.role == TensorRole::optimizer) {
      continue;
    }
    if (found == by_name.end()) {
      differences.push_back(fmt::format("{} is missing: [{}]", state.tensor.name, fmt::join(state.tensor.shape, ", ")));
      continue;
    }
    const TensorInfo& info = source.tensors[found->second];
    if (info.shape != state.tensor.shape) {
      differences.push_back(fmt::format("{} is [{}], and the job has it as [{}]", info.name,
                                        fmt::join(info.shape, ", "), fmt::join(state.tensor.shape, ", ")));
    }
    if (info.dtype != state.tensor.dtype && !(is_real(info.dtype) && is_real(state.tensor.dtype))) {
      differences.push_back(fmt::format("{} is {}, and the job has it as {}", info.name, to_string(info.dtype),
                                        to_string(state.tensor.dtype)));
    }
    state.source = found->second;
    by_name.erase(found);
  }
  for (const auto& [name, index] : by_name) {
    differences.push_back(
        fmt::format("the job has no tensor {} [{}]", name, fmt::join(source.tensors[index].shape, ", ")));
  }
  if (!differences.empty()) {
    throw Error(ErrorCode::data, fmt::format("'{}' does not have the tensors of the job:\n  {}", source.path.native(),
                                             fmt::join(differences, "\n  ")));
  }
}

void require_no_later(const std::filesystem::path& root, std::int64_t step) {
  const std::vector<Listed> listed = list_checkpoints(root);
  if (!listed.empty() && listed.back().step >= step) {
    throw Error(ErrorCode::usage,
                fmt::format("'{}' has a checkpoint of step {} already, and --resume would take the newest: choose "
                            "another folder",
                            files::shown(root).native(), listed.back().step));
  }
}

/// Throws as require_finite() does if one of these elements is NaN or infinite. `first`: the index of the first
/// element. Returns the index after the last one.
std::int64_t require_finite_in(std::span<const std::byte> bytes, const TensorSource& source, std::size_t tensor,
                               std::int64_t first, DType dtype) {
  std::vector<double> values(bytes.size() / element_bytes(dtype));
  if (is_real(dtype)) {
    device::read_elements(loaded_type(dtype), bytes, values);
    require_finite(source, tensor, first, std::vector<float>(values.begin(), values.end()));
  }
  return first + static_cast<std::int64_t>(values.size());
}

/// Writes a tensor whose elements all have this value.
void stream_constant(double value, const StoredTensor& tensor, files::SequentialFile& file) {
  const std::size_t element = element_bytes(tensor.dtype);
  auto rest = static_cast<std::int64_t>(*tensor_bytes({tensor.name, tensor.dtype, tensor.shape}) / element);
  const std::vector<double> values(static_cast<std::size_t>(std::min(rest, elements_at_once)), value);
  std::vector<std::byte> bytes(values.size() * element);
  device::write_elements(loaded_type(tensor.dtype), values, bytes);
  for (; rest > 0; rest -= elements_at_once) {
    file.write(std::span(bytes).first(static_cast<std::size_t>(std::min(rest, elements_at_once)) * element));
  }
}

/// Writes all tensors to the file of rank 0, and records each tensor's place in that file.
StoredFile write_tensors(const TensorSource& source, std::vector<Imported>& states,
                         const std::filesystem::path& folder) {
  std::vector<TensorInfo> infos;
  std::map<std::string, Imported*> by_name;
  for (Imported& state : states) {
    infos.push_back({state.tensor.name, state.tensor.dtype, state.tensor.shape});
    by_name[state.tensor.name] = &state;
  }
  const TensorFileLayout layout = lay_out(std::move(infos), {{"format", "pt"}});
  StoredFile stored{.name = rank_file_name(0), .bytes = layout.file_bytes, .hash = {}};
  files::SequentialFile file(folder / stored.name, stored.bytes);
  file.write(std::as_bytes(std::span(layout.header)));
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    Imported& state = *by_name.at(layout.tensors[i].name);
    const std::vector<std::int64_t>& shape = state.tensor.shape;
    state.tensor.pieces = {{.file = 0,
                            .offset = layout.offsets[i],
                            .box = {.origin = std::vector<std::int64_t>(shape.size(), 0), .shape = shape, .run = {}}}};
    if (state.source) {
      std::int64_t done = 0;
      stream_as(source, *state.source, state.tensor.dtype, [&](std::span<const std::byte> bytes) {
        file.write(bytes);
        done = require_finite_in(bytes, source, *state.source, done, state.tensor.dtype);
      });
    } else {
      stream_constant(state.constant, state.tensor, file);
    }
  }
  stored.hash = file.finish();
  return stored;
}

}  // namespace

std::filesystem::path import_checkpoint(const TensorSource& source, const graph::Graph& graph,
                                        const device::Device& device, Manifest described,
                                        const std::filesystem::path& root) {
  std::vector<Imported> states = imported_states(graph, device);
  match(source, states);
  if (!list_checkpoints(root / "checkpoints").empty()) {
    throw Error(ErrorCode::data,
                fmt::format("'{}' is the folder of a run, whose own checkpoints are in its folder checkpoints: choose "
                            "another folder",
                            files::shown(root).native()));
  }
  require_none_unfinished(root, source.files);
  const files::Folder locked = lock_checkpoints(root);
  require_no_later(root, described.step);
  try {
    described.files = {write_tensors(source, states, begin_checkpoint(root, described.step))};
    for (Imported& state : states) {
      described.tensors.push_back(std::move(state.tensor));
    }
    commit_checkpoint(root, described);
  } catch (...) {
    remove_unfinished_checkpoints(root);
    throw;
  }
  return root / folder_name(described.step);
}

}  // namespace shardrun::checkpoint
