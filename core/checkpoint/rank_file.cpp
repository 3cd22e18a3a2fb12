#include "core/checkpoint/rank_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "core/device/host_tensor.h"
#include "core/mesh/rows.h"

namespace shardrun::checkpoint {
namespace {

std::vector<FilePart> parts_of(const Contents& contents, std::int64_t rank) {
  std::vector<FilePart> parts;
  for (const OwnPiece& piece : contents.of_ranks[static_cast<std::size_t>(rank)]) {
    const SavedTensor& saved = contents.tensors[piece.tensor];
    parts.push_back({.name = saved.tensor.name,
                     .dtype = saved.tensor.dtype,
                     .whole = saved.tensor.shape,
                     .box = piece.box,
                     .state = saved.state,
                     .first = piece.elements.begin});
  }
  return parts;
}

std::vector<std::int64_t> numbers_in(const std::string& text) {
  std::vector<std::int64_t> numbers;
  for (const char* at = text.c_str(); *at != '\0';) {
    char* end = nullptr;
    const std::int64_t number = std::strtoll(at, &end, 10);
    if (end != at) {
      numbers.push_back(number);
    }
    at = end == at ? at + 1 : end;
  }
  return numbers;
}

}  // namespace

RankFile::RankFile(const std::vector<FilePart>& parts) {
  std::vector<TensorInfo> infos;
  std::map<std::string_view, const FilePart*> by_name;
  Metadata metadata = {{"format", "pt"}};
  for (const FilePart& part : parts) {
    infos.push_back({part.name, part.dtype, part.box.part_shape()});
    by_name[part.name] = &part;
    metadata[place_key(part.name)] = place_text(part.box, part.whole);
  }
  layout_ = lay_out(std::move(infos), metadata);
  for (const TensorInfo& tensor : layout_.tensors) {
    const FilePart& part = *by_name.at(tensor.name);
    const std::size_t element = element_bytes(tensor.dtype);
    sources_.push_back({.box = part.box,
                        .state = part.state,
                        .begin = static_cast<std::size_t>(part.first) * element,
                        .bytes = static_cast<std::size_t>(part.box.elements()) * element});
  }
}

RankFile::RankFile(const Contents& contents, std::int64_t rank) : RankFile(parts_of(contents, rank)) {}

std::uint64_t RankFile::snapshot_bytes() const noexcept {
  constexpr std::uint64_t page = 4096;
  return (bytes() + page - 1) / page * page;
}

std::vector<std::pair<std::string, Piece>> RankFile::pieces(std::size_t file) const {
  std::vector<std::pair<std::string, Piece>> pieces;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    pieces.emplace_back(layout_.tensors[i].name,
                        Piece{.file = file, .offset = layout_.offsets[i], .box = sources_[i].box});
  }
  return pieces;
}

void RankFile::stream(const runtime::Executor& executor,
                      const std::function<void(std::span<const std::byte>)>& take) const {
  take(std::as_bytes(std::span(layout_.header)));
  for (const Source& source : sources_) {
    const device::HostTensor part(executor.queue(), executor.state(source.state), device::Access::read);
    take(part.bytes().subspan(source.begin, source.bytes));
  }
}

void describe(const Contents& contents, std::vector<StoredFile> files, Manifest& manifest) {
  std::map<std::string, std::size_t> numbers;
  manifest.tensors.clear();
  for (const SavedTensor& saved : contents.tensors) {
    numbers[saved.tensor.name] = manifest.tensors.size();
    manifest.tensors.push_back(saved.tensor);
  }
  for (std::size_t rank = 0; rank < files.size(); ++rank) {
    for (auto& [name, piece] : RankFile(contents, static_cast<std::int64_t>(rank)).pieces(rank)) {
      manifest.tensors[numbers.at(name)].pieces.push_back(std::move(piece));
    }
  }
  manifest.files = std::move(files);
}

std::string place_key(const std::string& tensor) { return "place " + tensor; }

std::string place_text(const mesh::Box& box, const std::vector<std::int64_t>& whole) {
  const std::string run =
      box.run ? fmt::format(", elements {}:{} of {}", box.run->begin, box.run->end, fmt::join(box.shape, ",")) : "";
  return fmt::format("{} of {}{}", fmt::join(box.origin, ","), fmt::join(whole, ","), run);
}

std::optional<mesh::Box> place_in(const Metadata& metadata, const TensorInfo& stored,
                                  const std::vector<std::int64_t>& whole) {
  const auto place = metadata.find(place_key(stored.name));
  if (place == metadata.end()) {
    return std::nullopt;
  }
  const std::vector<std::int64_t> numbers = numbers_in(place->second);
  const std::size_t dims = whole.size();
  const bool is_run = numbers.size() == 3 * dims + 2;
  if (!is_run && (numbers.size() != 2 * dims || stored.shape.size() != dims)) {
    return std::nullopt;
  }
  const auto first = numbers.begin();
  const auto count = static_cast<std::ptrdiff_t>(dims);
  mesh::Box box{{first, first + count}, stored.shape};
  if (is_run) {
    box.shape = {first + 2 * count + 2, numbers.end()};
    box.run = mesh::Interval{numbers[2 * dims], numbers[2 * dims + 1]};
  }
  const bool is_sound = mesh::lies_within(box, whole) && place->second == place_text(box, whole);
  return is_sound && stored.shape == box.part_shape() ? std::optional(box) : std::nullopt;
}

bool takes_snapshots(const job::Job& job) noexcept {
  const job::CheckpointSettings& settings = job.checkpoints;
  return settings.used && settings.async && (settings.every > 0 || settings.minutes > 0);
}

}  // namespace shardrun::checkpoint
