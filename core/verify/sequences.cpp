#include "core/verify/sequences.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

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
constexpr const char* line_key = "line";
constexpr const char* id_key = "id";
constexpr const char* parted_key = "tokens differ between ranks";

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

std::string sequence_name(std::int64_t number) { return fmt::format("sequence {}", number); }

void SequenceRecorder::name(std::int64_t number, std::int64_t line, const std::string& id) {
  lines_[number] = {line, id};
}

void SequenceRecorder::part(const std::function<std::int64_t(std::int64_t number)>& least) {
  has_parted_ = true;
  const std::int64_t sequences = least(std::ssize(recorded_));
  while (std::ssize(recorded_) > sequences) {
    recorded_.erase(std::prev(recorded_.end()));
  }
  for (auto& [number, recorded] : recorded_) {
    std::vector<std::int32_t>& kept = recorded.sequence.kept;
    const std::size_t vocabulary = recorded.logits.size() / kept.size();
    kept.resize(static_cast<std::size_t>(least(std::ssize(kept))));
    recorded.sequence.tokens.resize(static_cast<std::size_t>(kept.back()) + 1);
    recorded.logits.resize(kept.size() * vocabulary);
  }
}

void SequenceRecorder::take(const infer::Computed& computed) {
  Recorded& recorded = recorded_[computed.id];
  const std::int64_t end = computed.first + computed.rows;
  const std::span<const std::int32_t> read = computed.tokens.first(static_cast<std::size_t>(end));
  recorded.sequence.name = sequence_name(computed.id);
  recorded.sequence.tokens.assign(read.begin(), read.end());
  for (std::int64_t i = computed.first; i < end; ++i) {
    recorded.sequence.kept.push_back(static_cast<std::int32_t>(i));
  }
  recorded.logits.insert(recorded.logits.end(), computed.logits.begin(), computed.logits.end());
}

void SequenceRecorder::write(const std::filesystem::path& folder, std::int64_t rank) const {
  std::int64_t step = 0;
  for (const auto& [number, recorded] : recorded_) {
    const Workload::Sequence& sequence = recorded.sequence;
    const std::int64_t rows = std::ssize(sequence.kept);
    const std::vector<std::int64_t> shape = {rows, std::ssize(recorded.logits) / rows};
    const std::vector<checkpoint::Tensor> tensors = {
        {.info = {sequence.name, checkpoint::DType::f32, shape}, .bytes = std::as_bytes(std::span(recorded.logits))},
        tensor_of(tokens_name, sequence.tokens),
        tensor_of(kept_name, sequence.kept)};
    const std::string place = checkpoint::place_text({.origin = {0, 0}, .shape = shape}, shape);
    checkpoint::Metadata metadata = {{checkpoint::place_key(sequence.name), place}, {name_key, sequence.name}};
    if (const auto named = lines_.find(number); named != lines_.end()) {
      metadata[line_key] = std::to_string(named->second.first);
      metadata[id_key] = named->second.second;
    }
    if (has_parted_) {
      metadata[parted_key] = "";
    }
    checkpoint::write_safetensors(snapshot_path(folder, step++, Moment::end, rank), tensors, metadata);
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
    if (file.metadata().contains(line_key)) {
      sequences.back().line = std::stoll(file.metadata().at(line_key));
      sequences.back().id = file.metadata().at(id_key);
    }
  }
  return sequences;
}

bool have_parted(const std::filesystem::path& folder) {
  return checkpoint::SafetensorsFile(snapshot_path(folder, 0, Moment::end, 0)).metadata().contains(parted_key);
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
