#pragma once

#include <filesystem>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/checkpoint/folder.h"
#include "core/checkpoint/manifest.h"
#include "core/checkpoint/safetensors.h"
#include "core/files/hash.h"
#include "tests/support/temporary_folder.h"

namespace shardrun::test {

inline files::Hash hash_of_file(const std::filesystem::path& path) { return files::hash_of(read_file(path)); }

/// A tensor in one of the files of save_small_checkpoint(): which elements (`box`) of which tensor of the
/// manifest it has.
struct SmallPiece {
  std::size_t tensor;
  mesh::Box box;
};

/// The pieces of two files. w [4, 3] is split by columns: 2 and 1. moment [5] is split into runs of 3 and 2 elements.
inline const std::vector<std::vector<SmallPiece>>& small_pieces() {
  static const std::vector<std::vector<SmallPiece>> pieces = {
      {{0, {{0, 0}, {4, 2}, {}}}, {1, {{0}, {5}, mesh::Interval{0, 3}}}},
      {{0, {{0, 2}, {4, 1}, {}}}, {1, {{0}, {5}, mesh::Interval{3, 5}}}},
  };
  return pieces;
}

inline checkpoint::Manifest small_manifest(std::int64_t step) {
  checkpoint::Manifest manifest{.step = step,
                                .samples = step * 12,
                                .run = {.task = "train",
                                        .model = "[model]\nname = none\n",
                                        .optimizer = "sgd with momentum",
                                        .tokenizer = R"({"kind":"byte"})",
                                        .data = {"100 bytes, hash 00ff"},
                                        .split = "0.9",
                                        .seed = UINT64_MAX},
                                .strategy = "tp",
                                .mesh = "model 2",
                                .precision = "float32",
                                .job = "[job]\n",
                                .files = {},
                                .tensors = {}};
  manifest.tensors = {{"w", checkpoint::TensorRole::parameter, checkpoint::DType::f32, {4, 3}, {}},
                      {"w/moment", checkpoint::TensorRole::optimizer, checkpoint::DType::f32, {5}, {}}};
  return manifest;
}

/// Writes a checkpoint and returns its folder. Element i of every tensor is first + i.
inline std::filesystem::path save_small_checkpoint(const std::filesystem::path& root, std::int64_t step = 20,
                                                   float first = 0,
                                                   const std::vector<std::vector<SmallPiece>>& files = small_pieces()) {
  checkpoint::Manifest manifest = small_manifest(step);
  const std::filesystem::path folder = checkpoint::begin_checkpoint(root, step);
  for (std::size_t file = 0; file < files.size(); ++file) {
    std::vector<std::vector<float>> values;
    std::vector<checkpoint::Tensor> tensors;
    for (const SmallPiece& piece : files[file]) {
      const checkpoint::StoredTensor& tensor = manifest.tensors[piece.tensor];
      values.emplace_back();
      for (std::int64_t i = 0; i < piece.box.elements(); ++i) {
        values.back().push_back(first + static_cast<float>(piece.box.index_in_whole(tensor.shape, i)));
      }
      tensors.push_back({{tensor.name, tensor.dtype, piece.box.part_shape()}, {}});
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].bytes = std::as_bytes(std::span<const float>(values[i]));
    }
    const std::string name = checkpoint::rank_file_name(static_cast<std::int64_t>(file));
    checkpoint::write_safetensors(folder / name, tensors, {});
    std::vector<checkpoint::TensorInfo> infos;
    for (const checkpoint::Tensor& tensor : tensors) {
      infos.push_back(tensor.info);
    }
    const checkpoint::TensorFileLayout layout = checkpoint::lay_out(infos, {});
    for (const SmallPiece& piece : files[file]) {
      checkpoint::StoredTensor& tensor = manifest.tensors[piece.tensor];
      for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
        if (layout.tensors[i].name == tensor.name) {
          tensor.pieces.push_back({file, layout.offsets[i], piece.box});
        }
      }
    }
    manifest.files.push_back({name, layout.file_bytes, hash_of_file(folder / name)});
  }
  checkpoint::commit_checkpoint(root, manifest);
  return root / checkpoint::folder_name(step);
}

/// Replaces the manifest of a checkpoint.
inline void replace_manifest(const std::filesystem::path& folder, const checkpoint::Manifest& manifest) {
  write_file(folder / checkpoint::manifest_name, checkpoint::to_json(manifest));
}

}  // namespace shardrun::test
