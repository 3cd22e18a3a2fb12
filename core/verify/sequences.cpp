#include "core/verify/sequences.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/checkpoint/rank_file.h"
#include "core/checkpoint/safetensors.h"
#include "core/verify/snapshot.h"
#include "core/workload/program.h"

namespace shardrun::verify {
namespace {

// Tensors of a snapshot beside the logits.
constexpr const char* tokens_name = "tokens";
constexpr const char* kept_name = "kept";
constexpr const char* name_key = "sequence";

checkpoint::Tensor tensor_of(const char* name, const std::vector<std::int32_t>& numbers) {
  return {.info = {name, checkpoint::DType::i32, {std::ssize(numbers)}}, .bytes = std::as_bytes(std::span(numbers))};
}

std::vector<std::int32_t> read_numbers(const checkpoint::SafetensorsFile& file, const char* name) {
  const checkpoint::Tensor& tensor = file.at(name);
  std::vector<std::int32_t> numbers(tensor.bytes.size() / sizeof(std::int32_t));
  file.read(tensor, 0, std::as_writable_bytes(std::span(numbers)));
  return numbers;
}

}  // namespace

void SequenceRecorder::take(const infer::Computed& computed) {
  Recorded& recorded = recorded_[computed.id];
  const std::int64_t end = computed.first + computed.rows;
  const std::span<const std::int32_t> read = computed.tokens.first(static_cast<std::size_t>(end));
  recorded.sequence.name = fmt::format("sequence {}", computed.id);
  recorded.sequence.tokens.assign(read.begin(), read.end());
  for (std::int64_t i = computed.first; i < end; ++i) {
    recorded.sequence.kept.push_back(static_cast<std::int32_t>(i));
  }
  recorded.logits.insert(recorded.logits.end(), computed.logits.begin(), computed.logits.end());
}

void SequenceRecorder::write(const std::filesystem::path& folder, std::int64_t rank) const {
  std::int64_t step = 0;
  for (const auto& [id, recorded] : recorded_) {
    const Workload::Sequence& sequence = recorded.sequence;
    const std::int64_t rows = std::ssize(sequence.kept);
    const std::vector<std::int64_t> shape = {rows, std::ssize(recorded.logits) / rows};
    const std::vector<checkpoint::Tensor> tensors = {
        {.info = {sequence.name, checkpoint::DType::f32, shape}, .bytes = std::as_bytes(std::span(recorded.logits))},
        tensor_of(tokens_name, sequence.tokens),
        tensor_of(kept_name, sequence.kept)};
    const std::string place = checkpoint::place_text({.origin = {0, 0}, .shape = shape}, shape);
    checkpoint::write_safetensors(snapshot_path(folder, step++, Moment::end, rank), tensors,
                                  {{checkpoint::place_key(sequence.name), place}, {name_key, sequence.name}});
  }
}

std::vector<Workload::Sequence> read_sequences(const std::filesystem::path& folder) {
  std::vector<Workload::Sequence> sequences;
  for (std::filesystem::path path;
       std::filesystem::exists(path = snapshot_path(folder, std::ssize(sequences), Moment::end, 0));) {
    const checkpoint::SafetensorsFile file(path);
    sequences.push_back({.name = file.metadata().at(name_key),
                         .tokens = read_numbers(file, tokens_name),
                         .kept = read_numbers(file, kept_name)});
  }
  return sequences;
}

graph::Graph graph_of_sequences(const job::Job& job, const compile::Compiled& compiled,
                                const std::vector<Workload::Sequence>& sequences) {
  std::int64_t longest = 1;
  std::vector<workload::WholeSequence> whole;
  for (const Workload::Sequence& sequence : sequences) {
    longest = std::max(longest, std::ssize(sequence.tokens));
    whole.push_back({.name = sequence.name, .tokens = std::ssize(sequence.tokens), .rows = std::ssize(sequence.kept)});
  }
  workload::ModelSettings settings = compiled.settings;
  settings.caches.of_sequence = (longest + settings.caches.page - 1) / settings.caches.page;
  settings.caches.pages = settings.caches.of_sequence;
  return workload::build_kept_decoding(compiled.model, settings, compile::decoding_settings(job, compiled), whole);
}

}  // namespace shardrun::verify
