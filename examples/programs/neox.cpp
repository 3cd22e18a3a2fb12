#include <shardrun/sdk/model.hpp>

#include <string>

namespace {

using namespace shardrun::sdk;

/// GPT-NeoX (Black et al. 2022, arXiv:2204.06745, section 2.1), the architecture of Pythia. Attention and the MLP read
/// the same residual stream, and both are added to it. Only the first columns of a head are rotated. Reads and writes
/// folders of GPTNeoXForCausalLM, whose tensors have the layout of the parameters here.
class Neox {
 public:
  static constexpr const char* help = "GPT-NeoX and Pythia, trained on tokens";
  static constexpr std::uint32_t data = SR_DATA_TOKENS;
  static constexpr const char* architectures = "GPTNeoXForCausalLM";

  static std::vector<Option> options() {
    return {integer_option("layers", 2, 1, 1024, "transformer blocks"),
            integer_option("heads", 4, 1, 65536, "attention heads; divides width"),
            integer_option("width", 64, 1, 262144, "columns of the residual stream"),
            optional(integer_option("hidden", 1, 1, 1048576,
                                    "columns between a block's last two matrices; 4 · width "
                                    "if it is left out")),
            integer_option("context", 32, 1, 1048576, "tokens that a sequence has"),
            optional(integer_option("vocab", 1, 1, 2097152, "size of the vocabulary; from the data if it is left out")),
            boolean_option("parallel", true, "attention and the matrices behind it read the same values"),
            number_option("rotated", 0.25, 0, 1, "share of a head's columns that are rotated"),
            number_option("theta", 10000, 1, 1e12, "base of the rotation"),
            boolean_option("attention_bias", true, "biases of attention's matrices"),
            boolean_option("tied", false, "the token embedding is the output layer too"),
            text_option("gelu", "erf", {"erf", "tanh"}, "the exact one, or its approximation"),
            number_option("epsilon", 1e-5, 1e-12, 1, "of the normalisations"),
            number_option("deviation", 0.02, 0, 10, "of the first values of matrices")};
  }

  void declare(const ModelJob& job, States& states) const {
    const Sizes s(job);
    std::int32_t layer = -1;
    const auto norm = [&](const std::string& name) {
      states.parameter(name + "/gain", {s.embed}, constant(1), false, layer);
      states.parameter(name + "/bias", {s.embed}, constant(0), false, layer);
    };
    const auto linear = [&](const std::string& name, const Dims& outputs, const Dims& inputs, bool bias) {
      Dims dims = outputs;
      dims.insert(dims.end(), inputs.begin(), inputs.end());
      states.parameter(name + "/weights", dims, normal(s.deviation), true, layer);
      if (bias) {
        states.parameter(name + "/bias", outputs, constant(0), false, layer);
      }
    };
    states.set_layers(s.layers);
    states.parameter("embedding", {s.vocab, s.embed}, normal(s.deviation), true);
    for (layer = 0; layer < s.layers; ++layer) {
      const std::string at = scope(layer) + "/";
      norm(at + "attention_norm");
      linear(at + "qkv", {s.heads, s.qkv}, {s.embed}, s.attention_bias);
      linear(at + "output", {s.embed}, {s.heads, s.head_dim}, s.attention_bias);
      norm(at + "mlp_norm");
      linear(at + "up", {s.mlp}, {s.embed}, true);
      linear(at + "down", {s.embed}, {s.mlp}, true);
    }
    layer = -1;
    norm("final_norm");
    if (!s.tied) {
      linear("head", {s.vocab}, {s.embed}, false);
    }
  }

  Value loss(const ModelJob& job, Function& f) const {
    const Value logits = forward(job, f);
    return cross_entropy(logits, f.input("targets", Element::i32, {{"batch", f.rows()}, Sizes(job).seq}));
  }

  /// The logits of all positions.
  Value forward(const ModelJob& job, Function& f) const {
    const Sizes s(job);
    return logits(s, body(s, f.input("inputs", Element::i32, {{"batch", f.rows()}, s.seq})));
  }

  /// The logits of one position, for `shardrun generate`.
  void predict(const ModelJob& job, Function& f) const {
    const Sizes s(job);
    const Value x = body(s, f.input("inputs", Element::i32, {{"batch", 1}, s.seq}));
    f.output("logits", logits(s, take_position(x, "last_position")));
  }

  void read_config(const HubConfig& config) const;
  void write_config(const ModelJob& job, ConfigOutput& config) const;
  void name_tensors(const ModelJob& job, TensorNames& names) const;

 private:
  struct Sizes {
    explicit Sizes(const ModelJob& job)
        : layers(job.options.integer("layers")),
          rotated(job.options.number("rotated")),
          deviation(job.options.number("deviation")),
          epsilon(job.options.number("epsilon")),
          parallel(job.options.boolean("parallel")),
          attention_bias(job.options.boolean("attention_bias")),
          tied(job.options.boolean("tied")),
          gelu_tanh(job.options.text("gelu") == "tanh"),
          vocab{"vocab", job.options.has("vocab") ? job.options.integer("vocab") : job.vocab},
          seq{"seq", job.options.integer("context")},
          embed{"embed", job.options.integer("width")},
          heads{"heads", job.options.integer("heads")},
          head_dim{"head_dim", embed.size / heads.size},
          qkv{"head_dim", 3 * head_dim.size},
          mlp{"mlp", job.options.has("hidden") ? job.options.integer("hidden") : 4 * embed.size},
          rotation{.base = job.options.number("theta")} {
      if (head_dim.size * heads.size != embed.size) {
        throw InvalidJob(
            "[model] heads = " + std::to_string(heads.size) + " does not divide width = " + std::to_string(embed.size),
            "model.heads");
      }
      if (rotated_columns() % 2 != 0) {
        throw InvalidJob("[model] rotated: " + std::to_string(rotated_columns()) + " of the " +
                             std::to_string(head_dim.size) + " columns of a head are no pairs",
                         "model.rotated");
      }
      if (vocab.size < job.vocab || vocab.size == 0) {
        throw InvalidJob(
            "[model] vocab = " + std::to_string(vocab.size) + ": the data has " + std::to_string(job.vocab) + " tokens",
            "model.vocab");
      }
    }

    [[nodiscard]] std::int64_t rotated_columns() const {
      return static_cast<std::int64_t>(static_cast<double>(head_dim.size) * rotated);
    }

    std::int64_t layers;
    double rotated, deviation, epsilon;
    bool parallel, attention_bias, tied, gelu_tanh;
    Dim vocab, seq, embed, heads, head_dim, qkv, mlp;  ///< qkv: a head's query, key and value, one after the other
    Rope rotation;
  };

  [[nodiscard]] static std::string scope(std::int64_t layer) { return "layer." + std::to_string(layer); }

  /// tokens: [batch, seq]   result, after the last normalisation: [batch, seq, embed]
  [[nodiscard]] static Value body(const Sizes& s, const Value& tokens) {
    Function& f = tokens.function();
    Value x = embedding(tokens, f.state("embedding"));
    f.cut_point("residual", x);
    for (std::int64_t layer = 0; layer < s.layers; ++layer) {
      f.set_layer(layer);
      f.set_scope(scope(layer));
      const std::string at = scope(layer) + "/";
      const Value mixed = x + attention(s, norm(s, x, at + "attention_norm"), at);
      const Value y = norm(s, s.parallel ? x : mixed, at + "mlp_norm");
      x = mixed + linear("btm,em->bte", gelu(linear("bte,me->btm", y, at + "up"), s.gelu_tanh), at + "down");
      f.cut_point("residual", x);
      f.set_scope("");
    }
    f.set_layer(s.layers);
    return norm(s, x, "final_norm");
  }

  /// x, result: [batch, seq, embed]
  [[nodiscard]] static Value attention(const Sizes& s, const Value& x, const std::string& at) {
    const Value all = linear("bte,hce->bthc", x, at + "qkv", s.attention_bias);  // [batch, seq, heads, qkv]
    const std::int64_t d = s.head_dim.size;
    const Value q = rotated(s, slice(all, -1, 0, d));
    const Value k = rotated(s, slice(all, -1, d, 2 * d));
    const Value y = scaled_dot_product_attention(q, k, slice(all, -1, 2 * d, 3 * d), {.group = 1});
    return linear("bthd,ehd->bte", y, at + "output", s.attention_bias);
  }

  /// x, result: [batch, seq, heads, head_dim]
  [[nodiscard]] static Value rotated(const Sizes& s, const Value& x) {
    const std::int64_t columns = s.rotated_columns();
    if (columns == 0) {
      return x;
    }
    if (columns == s.head_dim.size) {
      return rope(x, 1, s.rotation);
    }
    return concatenate({rope(slice(x, -1, 0, columns), 1, s.rotation), slice(x, -1, columns, s.head_dim.size)}, -1);
  }

  [[nodiscard]] static Value norm(const Sizes& s, const Value& x, const std::string& name) {
    return layer_norm(x, x.function().state(name + "/gain"), x.function().state(name + "/bias"), s.epsilon);
  }

  [[nodiscard]] static Value linear(const char* product, const Value& x, const std::string& name, bool bias = true) {
    const Value y = einsum(product, x, x.function().state(name + "/weights"));
    return bias ? y + x.function().state(name + "/bias") : y;
  }

  /// x: [..., embed]   logits: [..., vocab]
  [[nodiscard]] static Value logits(const Sizes& s, const Value& x) {
    return matmul_transposed(x, x.function().state(s.tied ? "embedding" : "head/weights"), 1, "logits");
  }
};

void Neox::read_config(const HubConfig& config) const {
  config.set("layers", config.integer("num_hidden_layers"));
  config.set("heads", config.integer("num_attention_heads"));
  config.set("width", config.integer("hidden_size"));
  config.set("hidden", config.integer("intermediate_size"));
  config.set("context", config.integer("max_position_embeddings", 2048));
  config.set("vocab", config.integer("vocab_size"));
  config.set("parallel", config.boolean("use_parallel_residual", true));
  config.set("attention_bias", config.boolean("attention_bias", true));
  config.set("tied", config.boolean("tie_word_embeddings", false));
  config.set("epsilon", config.number("layer_norm_eps", 1e-5));
  config.set("deviation", config.number("initializer_range", 0.02));
  // transformers 5 writes rope_parameters, transformers 4 the other two.
  config.set("rotated", config.number("rope_parameters.partial_rotary_factor", config.number("rotary_pct", 0.25)));
  config.set("theta", config.number("rope_parameters.rope_theta", config.number("rotary_emb_base", 10000)));
  config.require("rope_parameters.rope_type", "default");
  const std::string gelu = config.text("hidden_act", "gelu");
  if (gelu != "gelu" && gelu != "gelu_new" && gelu != "gelu_fast" && gelu != "gelu_pytorch_tanh") {
    throw InvalidJob("config.json: hidden_act = " + gelu + ": known are gelu, gelu_new, gelu_fast, gelu_pytorch_tanh");
  }
  config.set("gelu", gelu == "gelu" ? "erf" : "tanh");
  for (const char* rate : {"attention_dropout", "hidden_dropout"}) {
    if (config.number(rate, 0) != 0) {
      throw InvalidJob(std::string("config.json: ") + rate + " = " + HubConfig::digits(config.number(rate)) +
                       ": the model has no dropout");
    }
  }
  config.ignore_usual();
  config.ignore({"rope_scaling", "rope_parameters", "classifier_dropout"});
}

void Neox::write_config(const ModelJob& job, ConfigOutput& config) const {
  const Sizes s(job);
  config.text("architectures.0", architectures);
  config.text("model_type", "gpt_neox");
  config.integer("num_hidden_layers", s.layers);
  config.integer("num_attention_heads", s.heads.size);
  config.integer("hidden_size", s.embed.size);
  config.integer("intermediate_size", s.mlp.size);
  config.integer("max_position_embeddings", s.seq.size);
  config.integer("vocab_size", s.vocab.size);
  config.boolean("use_parallel_residual", s.parallel);
  config.boolean("attention_bias", s.attention_bias);
  config.boolean("tie_word_embeddings", s.tied);
  config.number("layer_norm_eps", s.epsilon);
  config.number("initializer_range", s.deviation);
  config.number("rotary_pct", s.rotated);
  config.number("rotary_emb_base", s.rotation.base);
  config.text("hidden_act", s.gelu_tanh ? "gelu_new" : "gelu");
}

void Neox::name_tensors(const ModelJob& job, TensorNames& names) const {
  const Sizes s(job);
  const std::int64_t width = s.embed.size;
  const auto norm = [&](const std::string& state, const std::string& name) {
    names.add(state + "/gain", name + ".weight", {width});
    names.add(state + "/bias", name + ".bias", {width});
  };
  const auto linear = [&](const std::string& state, const std::string& name, std::int64_t outputs, std::int64_t inputs,
                          bool bias) {
    names.add(state + "/weights", name + ".weight", {outputs, inputs});
    if (bias) {
      names.add(state + "/bias", name + ".bias", {outputs});
    }
  };
  names.add("embedding", "gpt_neox.embed_in.weight", {s.vocab.size, width});
  for (std::int64_t layer = 0; layer < s.layers; ++layer) {
    const std::string state = scope(layer) + "/";
    const std::string name = "gpt_neox.layers." + std::to_string(layer) + ".";
    norm(state + "attention_norm", name + "input_layernorm");
    linear(state + "qkv", name + "attention.query_key_value", 3 * width, width, s.attention_bias);
    linear(state + "output", name + "attention.dense", width, width, s.attention_bias);
    norm(state + "mlp_norm", name + "post_attention_layernorm");
    linear(state + "up", name + "mlp.dense_h_to_4h", s.mlp.size, width, true);
    linear(state + "down", name + "mlp.dense_4h_to_h", width, s.mlp.size, true);
  }
  norm("final_norm", "gpt_neox.final_layer_norm");
  if (s.tied) {
    names.leave_out("embed_out.weight");  // a copy of the embedding
  } else {
    names.add("head/weights", "embed_out.weight", {s.vocab.size, width});
  }
  for (const char* name : {"*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq"}) {
    names.leave_out(name);  // causal masks and frequencies, which follow from the sizes
  }
}

}  // namespace

SHARDRUN_EXPORT_MODEL(Neox, "neox", "1.0")
