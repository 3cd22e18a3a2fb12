#include <fmt/format.h>

#include <cmath>

#include "core/models/loss.h"
#include "core/models/model.h"

// GPT-2 (Radford et al. 2019): learned positions, layer normalisation before each block, GELU, weights drawn from
// N(0, 0.02²), those that write to the residual stream from N(0, 0.02²/(2·layers)).

namespace shardrun::models {
namespace {

using graph::DType;
using graph::FunctionBuilder;
using graph::Graph;
using graph::Initializer;
using graph::Scope;
using graph::ValueId;

constexpr double norm_epsilon = 1e-5;
constexpr double deviation = 0.02;

struct Sizes {
  std::int64_t layers, heads, head_dim, width, context, vocab;
  bool bias, tied;
  double dropout;
  std::string gelu;
};

Sizes sizes(const ModelSettings& settings) {
  const OptionValues& options = settings.options;
  Sizes s{.layers = options.integer("layers"),
          .heads = options.integer("heads"),
          .head_dim = 0,
          .width = options.integer("width"),
          .context = options.integer("context"),
          .vocab = options.has("vocab") ? options.integer("vocab") : settings.data.vocab,
          .bias = options.boolean("bias"),
          .tied = options.boolean("tied"),
          .dropout = options.real("dropout"),
          .gelu = options.text("gelu")};
  if (s.width % s.heads != 0) {
    refuse(settings, "model", "heads",
           fmt::format("[model] heads = {} does not divide width = {}: each head needs the same number of columns; "
                       "choose a width that is a multiple of {}",
                       s.heads, s.width, s.heads));
  }
  if (s.vocab == 0) {
    refuse_without_data(settings, "vocab");
  }
  if (s.vocab < settings.data.vocab) {
    refuse(settings, "model", "vocab",
           fmt::format("[model] vocab = {} is smaller than the data's {} distinct tokens: leave it out or raise it",
                       s.vocab, settings.data.vocab));
  }
  s.head_dim = s.width / s.heads;
  return s;
}

void declare(Graph& graph, const ModelSettings& settings) {
  const Sizes s = sizes(settings);
  const Initializer normal{Initializer::Kind::normal, deviation};
  const Initializer residual{Initializer::Kind::normal, deviation / std::sqrt(2.0 * static_cast<double>(s.layers))};
  const Initializer zero{Initializer::Kind::constant, 0};
  const Initializer one{Initializer::Kind::constant, 1};

  const auto norm = [&](const std::string& name, std::int32_t layer) {
    parameter(graph, name + "/gain", {s.width}, {"embed"}, one, false, layer);
    if (s.bias) {
      parameter(graph, name + "/bias", {s.width}, {"embed"}, zero, false, layer);
    }
  };
  const auto linear = [&](const std::string& name, std::vector<std::int64_t> shape, std::vector<std::string> axes,
                          std::size_t inputs, Initializer initializer, std::int32_t layer) {
    parameter(graph, name + "/weights", shape, axes, initializer, true, layer);
    if (s.bias) {
      const auto cut = static_cast<std::ptrdiff_t>(inputs);
      parameter(graph, name + "/bias", {shape.begin() + cut, shape.end()}, {axes.begin() + cut, axes.end()}, zero,
                false, layer);
    }
  };

  graph.layers = static_cast<std::int32_t>(s.layers);
  parameter(graph, "embedding/tokens", {s.vocab, s.width}, {"vocab", "embed"}, normal, true);
  parameter(graph, "embedding/positions", {s.context, s.width}, {"seq", "embed"}, normal, true);
  for (std::int32_t layer = 0; layer < graph.layers; ++layer) {
    const std::string at = fmt::format("layer.{}/", layer);
    norm(at + "attention_norm", layer);
    linear(at + "attention/qkv", {s.width, 3, s.heads, s.head_dim}, {"embed", "qkv", "heads", "head_dim"}, 1, normal,
           layer);
    linear(at + "attention/output", {s.heads, s.head_dim, s.width}, {"heads", "head_dim", "embed"}, 2, residual, layer);
    norm(at + "mlp_norm", layer);
    linear(at + "mlp/up", {s.width, 4 * s.width}, {"embed", "mlp"}, 1, normal, layer);
    linear(at + "mlp/down", {4 * s.width, s.width}, {"mlp", "embed"}, 1, residual, layer);
  }
  norm("final_norm", -1);
  if (!s.tied) {
    parameter(graph, "head/weights", {s.vocab, s.width}, {"vocab", "embed"}, normal, true);
  }
}

/// The network, written once for training, evaluation and prediction.
class Network {
 public:
  Network(FunctionBuilder& builder, const Sizes& sizes, bool training)
      : builder_(builder), s_(sizes), training_(training) {}

  /// tokens: [batch, seq]   result, after the last normalisation: [batch, seq, embed]
  ValueId body(ValueId tokens) {
    ValueId x = builder_.call("embedding", {tokens, builder_.state("embedding/tokens")});
    x = builder_.call("add", {x, builder_.state("embedding/positions")}, {}, "embedding/positioned");
    x = dropout(x, "embedding/dropout", "embedding/dropout");
    builder_.cut_point("residual", x);
    for (std::int64_t layer = 0; layer < s_.layers; ++layer) {
      builder_.set_layer(static_cast<std::int32_t>(layer));
      const Scope scope(builder_, fmt::format("layer.{}", layer));
      x = block(x, fmt::format("layer.{}/", layer));
    }
    builder_.set_layer(builder_.graph().layers);
    return norm(x, "final_norm");
  }

  /// x: [..., embed]   logits: [..., vocab]
  ValueId logits(ValueId x) {
    const ValueId table = builder_.state(s_.tied ? "embedding/tokens" : "head/weights");
    return builder_.call("matmul", {x, table}, {{"contract", std::int64_t{1}}, {"transpose", std::int64_t{1}}},
                         "logits");
  }

 private:
  ValueId block(ValueId x, const std::string& at) {
    ValueId y = norm(x, at + "attention_norm");
    y = linear(y, at + "attention/qkv", 1);
    y = builder_.call_all("attention", {y},
                          {{"dropout", training_ ? s_.dropout : 0.0}, {"stream", at + "attention/dropout"}},
                          "attention")[0];
    y = linear(y, at + "attention/output", 2);
    x = builder_.call("add", {x, dropout(y, "attention/output/dropout", at + "attention_output/dropout")});
    builder_.cut_point("attention_residual", x);
    y = norm(x, at + "mlp_norm");
    y = linear(y, at + "mlp/up", 1);
    y = builder_.call("gelu", {y}, {{"form", s_.gelu}}, "mlp/gelu");
    y = linear(y, at + "mlp/down", 1);
    x = builder_.call("add", {x, dropout(y, "mlp/down/dropout", at + "mlp_down/dropout")});
    builder_.cut_point("residual", x);
    return x;
  }

  ValueId norm(ValueId x, const std::string& name) {
    std::vector<ValueId> operands = {x, builder_.state(name + "/gain")};
    if (s_.bias) {
      operands.push_back(builder_.state(name + "/bias"));
    }
    return builder_.call_all("layer_norm", operands, {{"epsilon", norm_epsilon}})[0];
  }

  ValueId linear(ValueId x, const std::string& name, std::int64_t contract) {
    const ValueId y = builder_.call("matmul", {x, builder_.state(name + "/weights")},
                                    {{"contract", contract}, {"transpose", std::int64_t{0}}});
    return s_.bias ? builder_.call("add", {y, builder_.state(name + "/bias")}) : y;
  }

  /// `stream`: the key of its random numbers.
  ValueId dropout(ValueId x, const char* name, const std::string& stream) {
    if (!training_ || s_.dropout == 0) {
      return x;
    }
    return builder_.call("dropout", {x}, {{"rate", s_.dropout}, {"stream", stream}}, name);
  }

  FunctionBuilder& builder_;
  const Sizes& s_;
  bool training_;
};

ValueId losses(FunctionBuilder& builder, const ModelSettings& settings, std::int64_t rows, bool training) {
  const Sizes s = sizes(settings);
  const graph::TensorType tokens{DType::i32, {rows, s.context}, {"batch", "seq"}};
  Network network(builder, s, training);
  const ValueId inputs = builder.input("inputs", tokens);
  const ValueId targets = builder.input("targets", tokens);
  return cross_entropy(builder, network.logits(network.body(inputs)), targets);
}

std::int64_t losses_per_sample(const ModelSettings& settings) { return settings.options.integer("context"); }

void predict(FunctionBuilder& builder, const ModelSettings& settings) {
  const Sizes s = sizes(settings);
  Network network(builder, s, false);
  const ValueId tokens = builder.input("inputs", {DType::i32, {1, s.context}, {"batch", "seq"}});
  const ValueId last = builder.call("take_position", {network.body(tokens)}, {}, "last_position");
  builder.output("logits", network.logits(last));
}

const RegisterModel gpt(
    {.name = "gpt",
     .help = "GPT-2 architecture, trained on tokens",
     .options =
         {
             {.name = "layers",
              .minimum = 1,
              .maximum = 1024,
              .help = "transformer blocks",
              .aliases = {"n_layer", "n_layers", "num_layers", "num_hidden_layers", "depth", "n_blocks", "num_blocks",
                          "encoder_layers", "decoder_layers"}},
             {.name = "heads",
              .minimum = 1,
              .maximum = 65536,
              .help = "attention heads",
              .aliases = {"n_head", "n_heads", "num_heads", "num_attention_heads", "nhead", "attention_heads"}},
             {.name = "width",
              .minimum = 1,
              .maximum = 262144,
              .help = "columns of the residual stream; a multiple of heads",
              .aliases = {"n_embd", "n_embed", "hidden_size", "hidden_dim", "d_model", "dim", "embed_dim",
                          "embedding_dim", "embedding_size", "emb_dim", "model_dim", "n_hidden"}},
             {.name = "context",
              .minimum = 1,
              .maximum = 1048576,
              .help = "tokens that a sequence has",
              .aliases = {"block_size", "seq_length", "seq_len", "sequence_length", "max_seq_len", "max_seq_length",
                          "max_sequence_length", "context_length", "context_size", "ctx_len", "n_ctx", "n_positions",
                          "max_position_embeddings", "max_length"}},
             {.name = "vocab",
              .minimum = 1,
              .maximum = 2097152,
              .help = "size of the vocabulary, more than the highest token; from the tokenizer where there is text",
              .optional = true,
              .aliases = {"vocab_size", "n_vocab", "padded_vocab_size", "vocabulary_size", "num_tokens"}},
             {.name = "bias",
              .type = OptionType::boolean,
              .default_value = "false",
              .help = "biases in linear layers and normalisations",
              .aliases = {"use_bias", "add_bias_linear", "add_qkv_bias"}},
             {.name = "tied",
              .type = OptionType::boolean,
              .default_value = "true",
              .help = "the token embedding is the output layer too",
              .aliases = {"tie_word_embeddings",
                          "tie_embeddings",
                          "weight_tying",
                          "tied_embeddings",
                          "share_embeddings_and_output_weights",
                          {"untie_embeddings_and_output_weights", "true where that is false"}}},
             {.name = "gelu",
              .type = OptionType::choice,
              .default_value = "tanh",
              .choices = {"tanh", "erf"},
              .help = "tanh as GPT-2, or the exact erf",
              .aliases = {"activation", "activation_function", "hidden_act", "act_fn"},
              .choice_aliases = {{"gelu_new", "tanh"},
                                 {"gelu_pytorch_tanh", "tanh"},
                                 {"approximate", "tanh"},
                                 {"gelu", "erf"},
                                 {"exact", "erf"},
                                 {"none", "erf"}}},
             {.name = "dropout",
              .type = OptionType::real,
              .default_value = "0",
              .minimum = 0,
              .maximum = 1,
              .help = "rate after embeddings, attention and each block",
              .maximum_excluded = true,
              .aliases = {"hidden_dropout", "attention_dropout", "attn_dropout", "attn_pdrop", "resid_pdrop",
                          "embd_pdrop", "dropout_p", "dropout_rate", "drop_rate", "p_dropout", "hidden_dropout_prob"}},
         },
     .declare = declare,
     .losses = losses,
     .losses_per_sample = losses_per_sample,
     .predict = predict});

}  // namespace
}  // namespace shardrun::models
