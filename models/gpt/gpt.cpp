#include <shardrun/sdk/model.hpp>

#include <cmath>
#include <string>
#include <vector>

// GPT-2 (Radford et al. 2019): learned positions, layer normalisation before each block, GELU. Initial weights are
// drawn from N(0, 0.02²); those of layers that write to the residual stream, from N(0, 0.02²/(2·layers)).

namespace {

using namespace shardrun::sdk;

constexpr double norm_epsilon = 1e-5;
constexpr double deviation = 0.02;

struct Sizes {
  std::int64_t layers, heads, head_dim, width, context, positions, vocab;
  bool bias, tied;
  double dropout;
  bool gelu_tanh;
};

Sizes sizes(const ModelJob& job) {
  const OptionValues& options = job.options;
  Sizes s{.layers = options.integer("layers"),
          .heads = options.integer("heads"),
          .head_dim = 0,
          .width = options.integer("width"),
          .context = options.integer("context"),
          .positions = options.has("positions") ? options.integer("positions") : options.integer("context"),
          .vocab = options.has("vocab") ? options.integer("vocab") : job.vocab,
          .bias = options.boolean("bias"),
          .tied = options.boolean("tied"),
          .dropout = options.number("dropout"),
          .gelu_tanh = options.text("gelu") == "tanh"};
  if (s.width % s.heads != 0) {
    throw InvalidJob("[model] heads = " + std::to_string(s.heads) +
                         " does not divide width = " + std::to_string(s.width) +
                         ": each head needs the same number of columns; choose a width that is a multiple of " +
                         std::to_string(s.heads),
                     "model.heads");
  }
  if (s.positions < s.context) {
    throw InvalidJob("[model] positions = " + std::to_string(s.positions) + " is smaller than context = " +
                         std::to_string(s.context) + ": each token of a sequence needs a position",
                     "model.positions");
  }
  if (s.vocab == 0) {
    throw InvalidJob("[data] is missing: set text, tokens or arrays; [model] vocab is enough for a plan", "data");
  }
  if (s.vocab < job.vocab) {
    throw InvalidJob("[model] vocab = " + std::to_string(s.vocab) + " is smaller than the data's " +
                         std::to_string(job.vocab) + " distinct tokens: leave it out or raise it",
                     "model.vocab");
  }
  s.head_dim = s.width / s.heads;
  return s;
}

std::string layer_scope(std::int64_t layer) { return "layer." + std::to_string(layer); }

class Parameters {
 public:
  Parameters(States& states, const Sizes& sizes, const CacheSizes& caches)
      : states_(states), s_(sizes), caches_(caches) {}

  void declare() {
    const Initial weights = normal(deviation);
    const Initial residual = normal(deviation / std::sqrt(2.0 * static_cast<double>(s_.layers)));
    const Dim embed{"embed", s_.width};
    const Dim heads{"heads", s_.heads};
    const Dim head_dim{"head_dim", s_.head_dim};
    const Dim mlp{"mlp", 4 * s_.width};
    states_.set_layers(s_.layers);
    states_.parameter("embedding/tokens", {{"vocab", s_.vocab}, embed}, weights, true);
    states_.parameter("embedding/positions", {{"seq", s_.positions}, embed}, weights, true);
    for (std::int64_t l = 0; l < s_.layers; ++l) {
      const auto layer = static_cast<std::int32_t>(l);
      const std::string at = layer_scope(l) + "/";
      norm(at + "attention_norm", layer);
      linear(at + "attention/qkv", {embed}, {{"qkv", 3}, heads, head_dim}, weights, layer);
      if (caches_.pages > 0) {
        states_.cache(at + "attention/keys", caches_, heads, head_dim, layer);
        states_.cache(at + "attention/values", caches_, heads, head_dim, layer);
      }
      linear(at + "attention/output", {heads, head_dim}, {embed}, residual, layer);
      norm(at + "mlp_norm", layer);
      linear(at + "mlp/up", {embed}, {mlp}, weights, layer);
      linear(at + "mlp/down", {mlp}, {embed}, residual, layer);
    }
    norm("final_norm", -1);
    if (!s_.tied) {
      states_.parameter("head/weights", {{"vocab", s_.vocab}, embed}, weights, true);
    }
  }

 private:
  void norm(const std::string& name, std::int32_t layer) {
    states_.parameter(name + "/gain", {{"embed", s_.width}}, constant(1), false, layer);
    if (s_.bias) {
      states_.parameter(name + "/bias", {{"embed", s_.width}}, constant(0), false, layer);
    }
  }

  void linear(const std::string& name, Dims dims, const Dims& outputs, Initial weights, std::int32_t layer) {
    dims.insert(dims.end(), outputs.begin(), outputs.end());
    states_.parameter(name + "/weights", dims, weights, true, layer);
    if (s_.bias) {
      states_.parameter(name + "/bias", outputs, constant(0), false, layer);
    }
  }

  States& states_;
  const Sizes& s_;
  const CacheSizes& caches_;
};

/// The network for training, evaluation and prediction, and for decoding.
class Network {
 public:
  Network(Function& f, const Sizes& sizes, const Decoding* decoding = nullptr)
      : f_(f), s_(sizes), decoding_(decoding), rate_(f.training() ? sizes.dropout : 0) {}

  /// tokens: [batch, seq]   returns [batch, seq, embed], after the last normalisation
  [[nodiscard]] Value body(const Value& tokens) {
    Value x = embedding(tokens, f_.state("embedding/tokens"));
    x = (x + positions()).named("embedding/positioned");
    x = drop(x, "embedding/dropout", "embedding/dropout");
    f_.cut_point("residual", x);
    for (std::int64_t layer = 0; layer < s_.layers; ++layer) {
      f_.set_layer(layer);
      f_.set_scope(layer_scope(layer));
      x = block(x, layer_scope(layer) + "/");
      f_.set_scope("");
    }
    f_.set_layer(s_.layers);
    return norm(x, "final_norm");
  }

  /// x: [..., embed]   returns the logits: [..., vocab]
  [[nodiscard]] Value logits(const Value& x) {
    return matmul_transposed(x, f_.state(s_.tied ? "embedding/tokens" : "head/weights"), 1, "logits");
  }

 private:
  /// The embeddings of the tokens' positions.
  [[nodiscard]] Value positions() {
    const Value table = f_.state("embedding/positions");
    if (decoding_ != nullptr) {
      return embedding(decoding_->positions(), table);
    }
    return s_.positions > s_.context ? slice(table, 0, 0, s_.context) : table;
  }

  /// qkv: [batch, seq, 3, heads, head_dim]   returns [batch, seq, heads, head_dim]
  [[nodiscard]] Value attend(const Value& qkv, const std::string& at) {
    if (decoding_ == nullptr) {
      return attention(qkv, rate_, at + "attention/dropout", "attention");
    }
    const auto part = [&](std::int64_t i) { return sum(slice(qkv, 2, i, i + 1), {2}); };
    const Value q = part(0);
    const Value k = part(1);
    return decoding_->attend(at + "attention", q, k, part(2));
  }

  [[nodiscard]] Value block(Value x, const std::string& at) {
    Value y = norm(x, at + "attention_norm");
    y = linear(y, at + "attention/qkv");
    y = attend(y, at);
    y = linear(y, at + "attention/output", 2);
    x = x + drop(y, "attention/output/dropout", at + "attention_output/dropout");
    f_.cut_point("attention_residual", x);
    y = norm(x, at + "mlp_norm");
    y = linear(y, at + "mlp/up");
    y = gelu(y, s_.gelu_tanh, "mlp/gelu");
    y = linear(y, at + "mlp/down");
    x = x + drop(y, "mlp/down/dropout", at + "mlp_down/dropout");
    f_.cut_point("residual", x);
    return x;
  }

  [[nodiscard]] Value norm(const Value& x, const std::string& name) {
    const Value gain = f_.state(name + "/gain");
    return s_.bias ? layer_norm(x, gain, f_.state(name + "/bias"), norm_epsilon) : layer_norm(x, gain, norm_epsilon);
  }

  [[nodiscard]] Value linear(const Value& x, const std::string& name, std::int64_t contract = 1) {
    const Value y = matmul(x, f_.state(name + "/weights"), contract);
    return s_.bias ? y + f_.state(name + "/bias") : y;
  }

  /// Applies dropout. `stream`: names the stream of its random numbers.
  [[nodiscard]] Value drop(const Value& x, const char* name, const std::string& stream) {
    return rate_ == 0 ? x : dropout(x, rate_, stream, name);
  }

  Function& f_;
  const Sizes& s_;
  const Decoding* decoding_;  ///< null: no caches
  double rate_;
};

class Gpt {
 public:
  static constexpr const char* help = "GPT-2 architecture, trained on tokens";
  static constexpr std::uint32_t data = SR_DATA_TOKENS;

  static std::vector<Option> options();

  void declare(const ModelJob& job, States& states) const {
    const Sizes s = sizes(job);
    Parameters(states, s, job.caches).declare();
  }

  Value loss(const ModelJob& job, Function& f) const {
    const Value logits = forward(job, f);
    return cross_entropy(logits, f.input("targets", Element::i32, {{"batch", f.rows()}, {"seq", sizes(job).context}}));
  }

  /// Returns the logits of all positions: [batch, seq, vocab].
  Value forward(const ModelJob& job, Function& f) const {
    const Sizes s = sizes(job);
    Network network(f, s);
    return network.logits(network.body(f.input("inputs", Element::i32, {{"batch", f.rows()}, {"seq", s.context}})));
  }

  void predict(const ModelJob& job, Function& f) const {
    const Sizes s = sizes(job);
    Network network(f, s);
    const Value tokens = f.input("inputs", Element::i32, {{"batch", 1}, {"seq", s.context}});
    f.output("logits", network.logits(take_position(network.body(tokens), "last_position")));
  }

  Value decode(const ModelJob& job, Function& f) const {
    const Sizes s = sizes(job);
    const Decoding decoding(f, job.caches);
    Network network(f, s, &decoding);
    return network.logits(take_position(network.body(decoding.tokens()), "last_position"));
  }

  // Describes folders of GPT2LMHeadModel, as transformers writes them. Its matrices are [inputs, outputs], like ours.

  static constexpr const char* architectures = "GPT2LMHeadModel";
  void read_config(const HubConfig& config) const;
  void write_config(const ModelJob& job, ConfigOutput& config) const;
  void name_tensors(const ModelJob& job, TensorNames& names) const;
};

void Gpt::read_config(const HubConfig& config) const {
  const std::int64_t width = config.integer("n_embd");
  config.set("layers", config.integer("n_layer"));
  config.set("heads", config.integer("n_head"));
  config.set("width", width);
  config.set("context", config.integer("n_positions", 1024));
  config.set("positions", config.integer("n_positions", 1024));
  config.set("vocab", config.integer("vocab_size"));
  config.set("bias", true);
  config.set("tied", config.boolean("tie_word_embeddings", true));
  const std::string gelu = config.text("activation_function", "gelu_new");
  if (gelu != "gelu_new" && gelu != "gelu_pytorch_tanh" && gelu != "gelu") {
    throw InvalidJob("config.json: activation_function = " + gelu + ": known are gelu_new and gelu");
  }
  config.set("gelu", gelu == "gelu" ? "erf" : "tanh");
  const double rate = config.number("resid_pdrop", 0.1);
  if (config.number("embd_pdrop", 0.1) != rate || config.number("attn_pdrop", 0.1) != rate) {
    throw InvalidJob("config.json: resid_pdrop, embd_pdrop and attn_pdrop differ, and the model has one rate for all");
  }
  config.set("dropout", rate);
  config.require("n_inner", std::to_string(4 * width));
  if (config.number("layer_norm_epsilon", norm_epsilon) != norm_epsilon) {
    throw InvalidJob("config.json: layer_norm_epsilon is not 1e-5, which is the only one that the model has");
  }
  config.require("scale_attn_weights", "true");
  config.require("scale_attn_by_inverse_layer_idx", "false");
  config.require("add_cross_attention", "false");
  config.ignore_usual();
  config.ignore({"n_ctx", "reorder_and_upcast_attn", "summary_*"});
}

void Gpt::write_config(const ModelJob& job, ConfigOutput& config) const {
  const Sizes s = sizes(job);
  if (!s.bias) {
    throw InvalidJob("[model] bias = false: GPT2LMHeadModel has biases", "model.bias");
  }
  config.text("architectures.0", architectures);
  config.text("model_type", "gpt2");
  config.integer("n_layer", s.layers);
  config.integer("n_head", s.heads);
  config.integer("n_embd", s.width);
  config.integer("n_positions", s.positions);
  config.integer("vocab_size", s.vocab);
  config.boolean("tie_word_embeddings", s.tied);
  config.text("activation_function", s.gelu_tanh ? "gelu_new" : "gelu");
  config.number("layer_norm_epsilon", norm_epsilon);
  config.number("initializer_range", deviation);
  for (const char* rate : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    config.number(rate, s.dropout);
  }
}

void Gpt::name_tensors(const ModelJob& job, TensorNames& names) const {
  const Sizes s = sizes(job);
  const auto norm = [&](const std::string& state, const std::string& name) {
    names.add(state + "/gain", name + ".weight", {s.width});
    if (s.bias) {
      names.add(state + "/bias", name + ".bias", {s.width});
    }
  };
  const auto linear = [&](const std::string& state, const std::string& name, std::int64_t inputs,
                          std::int64_t outputs) {
    names.add(state + "/weights", name + ".weight", {inputs, outputs});
    if (s.bias) {
      names.add(state + "/bias", name + ".bias", {outputs});
    }
  };
  names.add("embedding/tokens", "transformer.wte.weight", {s.vocab, s.width});
  names.add("embedding/positions", "transformer.wpe.weight", {s.positions, s.width});
  for (std::int64_t layer = 0; layer < s.layers; ++layer) {
    const std::string state = layer_scope(layer) + "/";
    const std::string name = "transformer.h." + std::to_string(layer) + ".";
    norm(state + "attention_norm", name + "ln_1");
    linear(state + "attention/qkv", name + "attn.c_attn", s.width, 3 * s.width);
    linear(state + "attention/output", name + "attn.c_proj", s.width, s.width);
    norm(state + "mlp_norm", name + "ln_2");
    linear(state + "mlp/up", name + "mlp.c_fc", s.width, 4 * s.width);
    linear(state + "mlp/down", name + "mlp.c_proj", 4 * s.width, s.width);
  }
  norm("final_norm", "transformer.ln_f");
  if (s.tied) {
    names.leave_out("lm_head.weight");  // a copy of the embedding
  } else {
    names.add("head/weights", "lm_head.weight", {s.vocab, s.width});
  }
  names.leave_out("*.attn.bias");  // causal masks
  names.leave_out("*.attn.masked_bias");
}

std::vector<Option> Gpt::options() {
  return {
      also_called(required(integer_option("layers", 1, 1, 1024, "transformer blocks")),
                  "n_layer n_layers num_layers num_hidden_layers depth n_blocks num_blocks encoder_layers "
                  "decoder_layers"),
      also_called(required(integer_option("heads", 1, 1, 65536, "attention heads")),
                  "n_head n_heads num_heads num_attention_heads nhead attention_heads"),
      also_called(
          required(integer_option("width", 1, 1, 262144, "columns of the residual stream; a multiple of heads")),
          "n_embd n_embed hidden_size hidden_dim d_model dim embed_dim embedding_dim embedding_size emb_dim model_dim "
          "n_hidden"),
      also_called(required(integer_option("context", 1, 1, 1048576, "tokens that a sequence has")),
                  "block_size seq_length seq_len sequence_length max_seq_len max_seq_length max_sequence_length "
                  "context_length context_size ctx_len n_ctx n_positions max_position_embeddings max_length"),
      optional(integer_option("positions", 1, 1, 1048576,
                              "rows of the table of positions, at least context; as many if it is left out")),
      also_called(optional(integer_option("vocab", 1, 1, 2097152,
                                          "size of the vocabulary, more than the highest token; from the tokenizer "
                                          "where there is text")),
                  "vocab_size n_vocab padded_vocab_size vocabulary_size num_tokens"),
      also_called(boolean_option("bias", false, "biases in linear layers and normalisations"),
                  "use_bias add_bias_linear add_qkv_bias"),
      also_called(boolean_option("tied", true, "the token embedding is the output layer too"),
                  "tie_word_embeddings tie_embeddings weight_tying tied_embeddings share_embeddings_and_output_weights",
                  {{"untie_embeddings_and_output_weights", "", "true where that is false"}}),
      also_called(text_option("gelu", "tanh", {"tanh", "erf"}, "tanh as GPT-2, or the exact erf"),
                  "activation activation_function hidden_act act_fn",
                  {{"gelu_new", "tanh"},
                   {"gelu_pytorch_tanh", "tanh"},
                   {"approximate", "tanh"},
                   {"gelu", "erf"},
                   {"exact", "erf"},
                   {"none", "erf"}}),
      also_called(below_maximum(number_option("dropout", 0, 0, 1, "rate after embeddings, attention and each block")),
                  "hidden_dropout attention_dropout attn_dropout attn_pdrop resid_pdrop embd_pdrop dropout_p "
                  "dropout_rate drop_rate p_dropout hidden_dropout_prob"),
  };
}

}  // namespace

SHARDRUN_EXPORT_MODEL(Gpt, "gpt", "1.0")
