#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "core/files/hash.h"
#include "core/mesh/placement.h"

namespace shardrun::checkpoint {

// A checkpoint is a folder with a file of tensors from each rank that wrote any (such as rank-0.safetensors), and a
// manifest.json, which says where each piece of each tensor is.

/// Consecutive elements of a tensor's part, and their place in a file.
struct Piece {
  std::size_t file = 0;      ///< index in Manifest::files
  std::uint64_t offset = 0;  ///< offset in the file of the piece's first byte
  mesh::Box box;             ///< the elements of the piece, in coordinates of the whole tensor

  bool operator==(const Piece&) const = default;
};

/// What a tensor is used for in a job.
enum class TensorRole : std::uint8_t { parameter, optimizer, field, hook };

[[nodiscard]] const char* to_string(TensorRole role) noexcept;

struct StoredTensor {
  std::string name;
  TensorRole role = TensorRole::parameter;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  ///< shape of the whole tensor
  std::vector<Piece> pieces;        ///< together they contain each element exactly once

  bool operator==(const StoredTensor&) const = default;
};

struct StoredFile {
  std::string name;
  std::uint64_t bytes = 0;
  files::Hash hash;  ///< hash of the whole file

  bool operator==(const StoredFile&) const = default;
};

/// What a run that continues from a checkpoint compares with the run that saved it (check_resumed()).
struct RunIdentity {
  std::string task;   ///< "train" or "iterate"
  std::string model;  ///< the section [model] of the job file, with all options
  std::string optimizer;
  std::string tokenizer;          ///< the tokenizer as JSON; empty: none
  std::vector<std::string> data;  ///< fingerprints of the data's files
  std::string split;              ///< how the data is split into training and validation; empty: no data
  std::uint64_t seed = 0;

  bool operator==(const RunIdentity&) const = default;
};

/// The content of manifest.json.
struct Manifest {
  std::int64_t step = 0;           ///< steps done
  std::int64_t samples = 0;        ///< samples of training data consumed
  std::int64_t base = 0;           ///< steps that the state of [iterate] from has before the job's own steps
  bool evaluated = true;           ///< whether the evaluation due after this step has been done
  std::optional<double> loss;      ///< the loss of this step; nothing when iterating
  std::optional<double> val_loss;  ///< the last measured validation loss
  RunIdentity run;
  // How the run was distributed. These fields are not compared.
  std::string strategy;
  std::string mesh;  ///< "data 2, model 2, order 0 2 1 3"; without "order", ranks are in their usual order
  std::string precision;
  std::string job;  ///< the text of the job file
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;

  bool operator==(const Manifest&) const = default;
};

inline constexpr const char* manifest_name = "manifest.json";

/// The manifest as one line of JSON. Its first field is the hash of the rest. A loss that is NaN or infinite becomes
/// null, as in metrics.jsonl.
[[nodiscard]] std::string to_json(const Manifest& manifest);

/// Parses to_json()'s text. Checks all that needs no other file: the hash, the names of files, and that pieces are
/// inside of their tensors and files. `source` names the text in messages. Throws Error{data}.
[[nodiscard]] Manifest parse_manifest(std::string_view text, std::string_view source);

/// Total bytes of all files.
[[nodiscard]] std::uint64_t file_bytes(const Manifest& manifest) noexcept;

/// The name of the file that a rank writes: rank-3.safetensors.
[[nodiscard]] std::string rank_file_name(std::int64_t rank);

}  // namespace shardrun::checkpoint
