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

// A checkpoint is a folder with one file of tensors for each rank that wrote any (rank-0.safetensors), and
// manifest.json, which says where each piece of each tensor lies.

/// Consecutive elements of a part of a tensor, and where they are.
struct Piece {
  std::size_t file = 0;      ///< index in Manifest::files
  std::uint64_t offset = 0;  ///< of the piece's first byte in the file
  mesh::Box box;             ///< the piece's elements, in coordinates of the tensor

  bool operator==(const Piece&) const = default;
};

/// What a tensor is used for in a job.
enum class TensorRole : std::uint8_t { parameter, optimizer, field, hook };

[[nodiscard]] const char* to_string(TensorRole role) noexcept;

struct StoredTensor {
  std::string name;
  TensorRole role = TensorRole::parameter;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  std::vector<Piece> pieces;        ///< contain each element once

  bool operator==(const StoredTensor&) const = default;
};

struct StoredFile {
  std::string name;
  std::uint64_t bytes = 0;
  files::Hash hash;  ///< hash of all bytes of the file

  bool operator==(const StoredFile&) const = default;
};

/// The facts that a run that resumes must share with the run that saved.
struct RunIdentity {
  std::string task;   ///< "train" or "iterate"
  std::string model;  ///< its section of the job file, with all options
  std::string optimizer;
  std::string tokenizer;          ///< as JSON; empty: none
  std::vector<std::string> data;  ///< fingerprints of the data's files
  std::string split;              ///< how the data is split into training and validation; empty: no data
  std::uint64_t seed = 0;

  bool operator==(const RunIdentity&) const = default;
};

/// The contents of manifest.json.
struct Manifest {
  std::int64_t step = 0;           ///< steps done
  std::int64_t samples = 0;        ///< samples of training data consumed
  std::int64_t base = 0;           ///< steps of the state of [iterate] from; the job's own steps follow these
  bool evaluated = true;           ///< the evaluation that was due after this step has been done
  std::optional<double> loss;      ///< loss of the step; nothing when iterating
  std::optional<double> val_loss;  ///< the last measured validation loss
  RunIdentity run;
  // How the run was split; not compared.
  std::string strategy;
  std::string mesh;  ///< "data 2, model 2, order 0 2 1 3"; without an order it is that of the ranks
  std::string precision;
  std::string job;  ///< the text of the job file
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;

  bool operator==(const Manifest&) const = default;
};

inline constexpr const char* manifest_name = "manifest.json";

/// The manifest as one line of JSON. Its first field is the hash of the rest. A loss that is not finite becomes null,
/// as in metrics.jsonl.
[[nodiscard]] std::string to_json(const Manifest& manifest);

/// The inverse of to_json() for finite losses. Checks everything that can be checked without the files: the hash, that
/// names of files are those that ranks write, and that pieces lie within their tensors and files. `source` names the
/// text in messages. Throws Error{data}.
[[nodiscard]] Manifest parse_manifest(std::string_view text, std::string_view source);

/// Total bytes of all files.
[[nodiscard]] std::uint64_t file_bytes(const Manifest& manifest) noexcept;

/// The name of the file that a rank writes: rank-3.safetensors.
[[nodiscard]] std::string rank_file_name(std::int64_t rank);

}  // namespace shardrun::checkpoint
