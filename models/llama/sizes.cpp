#include "sizes.h"

#include <algorithm>

#include "rotation.h"

namespace llama {
namespace {

using namespace shardrun::sdk;

std::int64_t head_dim_of(const OptionValues& options, std::int64_t heads) {
  if (options.has("head_dim")) {
    return options.integer("head_dim");
  }
  const std::int64_t width = options.integer("width");
  if (width % heads != 0) {
    throw InvalidJob("[model] heads = " + std::to_string(heads) + " does not divide width = " + std::to_string(width) +
                         ": set head_dim, the columns of a head",
                     "model.heads");
  }
  return width / heads;
}

}  // namespace

Sizes sizes(const shardrun::sdk::ModelJob& job) {
  const OptionValues& options = job.options;
  const std::int64_t heads =
      options.has("heads") ? options.integer("heads") : std::max<std::int64_t>(options.integer("width") / 64, 1);
  const std::int64_t kv_heads = options.has("kv_heads") ? options.integer("kv_heads") : heads;
  if (heads % kv_heads != 0) {
    throw InvalidJob("[model] kv_heads = " + std::to_string(kv_heads) + " does not divide heads = " +
                         std::to_string(heads) + ": each head of keys and values serves the same number of query heads",
                     "model.kv_heads");
  }
  const std::int64_t head_dim = head_dim_of(options, heads);
  if (head_dim % 2 != 0) {
    throw InvalidJob(
        "[model] head_dim = " + std::to_string(head_dim) + " is odd: rotary positions turn pairs of columns",
        options.has("head_dim") ? "model.head_dim" : "model.heads");
  }
  const std::int64_t vocab = options.has("vocab") ? options.integer("vocab") : job.vocab;
  if (vocab == 0) {
    throw InvalidJob("[data] is missing: set text, tokens or arrays; [model] vocab is enough for a plan", "data");
  }
  if (vocab < job.vocab) {
    throw InvalidJob("[model] vocab = " + std::to_string(vocab) + " is smaller than the data's " +
                         std::to_string(job.vocab) + " distinct tokens: leave it out or raise it",
                     "model.vocab");
  }
  return {.layers = options.integer("layers"),
          .kv_heads = kv_heads,
          .group = heads / kv_heads,
          .width = options.integer("width"),
          .head_dim = head_dim,
          .hidden = options.integer("hidden"),
          .context = options.integer("context"),
          .vocab = vocab,
          .window = options.integer("window"),
          .first_window_layer = options.integer("first_window_layer"),
          .qkv_bias = options.boolean("qkv_bias"),
          .output_bias = options.boolean("output_bias"),
          .mlp_bias = options.boolean("mlp_bias"),
          .qk_norm = options.boolean("qk_norm"),
          .tied = options.boolean("tied"),
          .epsilon = options.number("epsilon"),
          .deviation = options.number("deviation"),
          .rope = rotation(options, head_dim)};
}

}  // namespace llama
