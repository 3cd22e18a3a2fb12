#include "core/checkpoint/rank_file.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "core/device/host_tensor.h"

namespace shardrun::checkpoint {

RankFile::RankFile(const Contents& contents, std::int64_t rank) {
  const std::vector<OwnPiece>& pieces = contents.of_ranks[static_cast<std::size_t>(rank)];
  std::vector<TensorInfo> infos;
  std::map<std::string_view, const OwnPiece*> by_name;
  for (const OwnPiece& piece : pieces) {
    const StoredTensor& tensor = contents.tensors[piece.tensor].tensor;
    infos.push_back({tensor.name, tensor.dtype, piece.box.part_shape()});
    by_name[tensor.name] = &piece;
  }
  layout_ = lay_out(std::move(infos), {{"format", "pt"}});
  for (std::size_t i = 0; i < layout_.tensors.size(); ++i) {
    const OwnPiece& piece = *by_name.at(layout_.tensors[i].name);
    const std::size_t element = element_bytes(layout_.tensors[i].dtype);
    sources_.push_back({.tensor = piece.tensor,
                        .box = piece.box,
                        .state = contents.tensors[piece.tensor].state,
                        .offset = layout_.offsets[i],
                        .begin = static_cast<std::size_t>(piece.elements.begin) * element,
                        .bytes = static_cast<std::size_t>(piece.elements.size()) * element});
  }
}

std::uint64_t RankFile::snapshot_bytes() const noexcept {
  constexpr std::uint64_t page = 4096;
  return (bytes() + page - 1) / page * page;
}

void RankFile::add_pieces(std::vector<StoredTensor>& tensors, std::size_t file) const {
  for (const Source& source : sources_) {
    tensors[source.tensor].pieces.push_back({.file = file, .offset = source.offset, .box = source.box});
  }
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
  manifest.tensors.clear();
  for (const SavedTensor& saved : contents.tensors) {
    manifest.tensors.push_back(saved.tensor);
  }
  for (std::size_t rank = 0; rank < files.size(); ++rank) {
    RankFile(contents, static_cast<std::int64_t>(rank)).add_pieces(manifest.tensors, rank);
  }
  manifest.files = std::move(files);
}

bool takes_snapshots(const job::Job& job) noexcept {
  const job::CheckpointSettings& settings = job.checkpoints;
  return settings.used && settings.async && (settings.every > 0 || settings.minutes > 0);
}

}  // namespace shardrun::checkpoint
