#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/graph.h"
#include "core/graph/rewrites.h"
#include "core/workload/model.h"

namespace shardrun::workload {

/// The optimizer as the graph needs it. Schedule and step number are run-time values.
struct OptimizerSettings {
  enum class Kind : std::uint8_t { adamw, sgd } kind = Kind::adamw;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double momentum = 0;                       ///< for sgd
  double weight_decay = 0;                   ///< for matrices and embeddings
  double clip = 0;                           ///< largest global norm; 0: no clipping
  graph::DType moments = graph::DType::f32;  ///< type in which moments and velocities are kept
};

struct TrainingSettings {
  std::int64_t batch = 1;
  std::int64_t microbatches = 1;
  std::int64_t eval_rows = 0;     ///< samples in an evaluation call
  std::int64_t eval_samples = 0;  ///< samples in a whole evaluation; 0: no evaluation
  bool predict = false;
  graph::Remat remat = graph::Remat::none;
  std::optional<graph::DType> mixed;  ///< mixed precision with gradients of this type; nothing: float32
  OptimizerSettings optimizer;
};

/// The numbers of rows of a step's microbatches: as even as possible, larger ones first.
[[nodiscard]] std::vector<std::int64_t> microbatch_rows(std::int64_t batch, std::int64_t microbatches);

/// The numbers of rows of the calls of an evaluation over `samples`: `rows` each, and the rest in the last call.
[[nodiscard]] std::vector<std::int64_t> evaluation_rows(std::int64_t samples, std::int64_t rows);

// Functions that are called by their names.
inline constexpr std::string_view evaluate_function = "evaluate";
inline constexpr std::string_view predict_function = "predict";
inline constexpr std::string_view forward_function = "forward";
// Functions made of a model's `decode`: `prefill` and `score` for tokens of one sequence, `decode` for one of each.
inline constexpr std::string_view prefill_function = "prefill";
inline constexpr std::string_view score_function = "score";
inline constexpr std::string_view decode_function = "decode";

/// The name of the output of the function `forward`.
inline constexpr std::string_view forward_output = "outputs";

/// The name of the metric that sums the counts of a loss.
inline constexpr std::string_view loss_count_state = "loss_count";
/// The state that sums the counts; the default id if the model's losses have no counts.
[[nodiscard]] graph::StateId loss_count_of(const graph::Graph& graph);

/// Builds the graph of training with these functions:
/// - `micro`, one for each number of rows that occurs, adds loss and gradients;
/// - `update` clips and steps the optimizer;
/// - `evaluate` adds the loss of validation samples to the state `loss`;
/// - `predict` computes logits.
/// The loss is Σ losses / (batch · losses per sample): nothing is divided by ranks or microbatches. The host reads the
/// scalar states `loss` and `gradient_norm`. For a loss with counts, `loss` and the gradients are sums over the
/// samples, which the host and the update divide by the state `loss_count`. Throws Error{job} if the model cannot be
/// trained, or if its options are inconsistent.
[[nodiscard]] graph::Graph build_training(const Model& model, const ModelSettings& model_settings,
                                          const TrainingSettings& settings);

/// A line that names the parameters without a gradient, which keep their first values. Empty if there are none, and for
/// a graph that is not trained.
[[nodiscard]] std::string untrained_notice(const graph::Graph& graph);

/// A graph with the parameters and only the function `predict`, for sampling. `weights` and `activations`: as for
/// graph::store_weights.
[[nodiscard]] graph::Graph build_prediction(const Model& model, const ModelSettings& model_settings,
                                            graph::DType weights = graph::DType::f32,
                                            graph::DType activations = graph::DType::f32);

/// How sequences are continued with caches.
struct DecodingSettings {
  std::int64_t slots = 1;   ///< sequences at once
  std::int64_t groups = 1;  ///< of slots; a call of `decode` makes a token of each slot of one group
  std::int64_t chunk = 64;  ///< tokens of a prompt in a call of `prefill`, which has one row
  graph::DType cache = graph::DType::f32;
  bool scores_prompts = false;                   ///< adds `score`: `prefill` with logits for all tokens, [chunk, vocab]
  graph::DType weights = graph::DType::f32;      ///< of matrices: see graph::store_weights
  graph::DType activations = graph::DType::f32;  ///< in products: see graph::store_weights
  bool fixed_order = false;  ///< products add in an order that does not depend on how they are split

  /// The rows of `decode`.
  [[nodiscard]] std::int64_t rows() const noexcept { return (slots + groups - 1) / groups; }
};

/// A graph with the parameters, the caches of `model_settings`, and the functions `prefill`, `score` (if prompts are
/// scored) and `decode`, in this order. Throws Error{job} if the model has no function `decode`.
[[nodiscard]] graph::Graph build_decoding(const Model& model, const ModelSettings& model_settings,
                                          const DecodingSettings& settings);

/// A sequence that is computed in one call.
struct WholeSequence {
  std::string name;
  std::int64_t tokens = 0;
  std::int64_t rows = 0;  ///< number of its tokens whose logits are kept
};

/// A graph with the parameters and the caches of build_decoding(), and a function for each sequence, with the
/// sequence's name: `decode` for all tokens of the sequence at once. Its input `kept` [rows] has the indices of tokens.
/// It writes the logits after these tokens to a state with the sequence's name, [rows, vocab]. REQUIRES: the caches
/// have room for one sequence.
[[nodiscard]] graph::Graph build_kept_decoding(const Model& model, const ModelSettings& model_settings,
                                               const DecodingSettings& settings,
                                               const std::vector<WholeSequence>& sequences);

/// Adds the functions `forward`, one for each number of rows that occurs in `calls`. Throws Error{job} if the model has
/// no such function.
void add_forward(graph::Graph& graph, const Model& model, const ModelSettings& model_settings,
                 const std::vector<std::int64_t>& calls);
/// A graph with the parameters and only the functions of add_forward().
[[nodiscard]] graph::Graph build_inference(const Model& model, const ModelSettings& model_settings,
                                           const std::vector<std::int64_t>& calls);
/// Like build_inference(), but each function writes its output to a state: one state for each number of rows.
[[nodiscard]] graph::Graph build_kept_inference(const Model& model, const ModelSettings& model_settings,
                                                const std::vector<std::int64_t>& calls);
/// The end of that state's name, after forward_output; empty for the number of rows of the first call.
[[nodiscard]] std::string kept_suffix(std::int64_t rows, std::int64_t first_rows);

/// A graph with fields and the function `iterate`, which uses `rows` samples in each call; 0: no data. Throws
/// Error{job} if the model cannot be iterated.
[[nodiscard]] graph::Graph build_iteration(const Model& model, const ModelSettings& model_settings,
                                           std::int64_t rows = 0);

}  // namespace shardrun::workload
