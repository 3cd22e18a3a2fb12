#include <shardrun/sdk/model.hpp>

#include <string>
#include <vector>

#include "hub.h"
#include "rotation.h"
#include "sizes.h"

// The transformer of Llama (Touvron et al. 2023, arXiv:2302.13971, section 2.2) and of models that differ in a few
// settings: Mistral, SmolLM2, Qwen2, Qwen3. It has RMSNorm before each block, rotary positions, grouped-query attention
// (Ainslie et al. 2023, arXiv:2305.13245) and SwiGLU (Shazeer 2020, arXiv:2002.05202). Matrices are [outputs, inputs],
// as in the files of transformers.

namespace {

using namespace shardrun::sdk;
using namespace llama;

class Parameters {
 public:
  Parameters(States& states, const Sizes& sizes, const CacheSizes& caches)
      : states_(states), s_(sizes), caches_(caches) {}

  void declare() {
    const Dim embed{"embed", s_.width};
    const Dim heads{"heads", s_.kv_heads * s_.group};
    const Dim kv_heads = heads.grouped(s_.group);
    const Dim head_dim{"head_dim", s_.head_dim};
    const Dim mlp{"mlp", s_.hidden};
    states_.set_layers(s_.layers);
    states_.parameter("embedding/tokens", {{"vocab", s_.vocab}, embed}, normal(s_.deviation), true);
    for (std::int64_t l = 0; l < s_.layers; ++l) {
      layer_ = static_cast<std::int32_t>(l);
      const std::string at = layer_scope(l) + "/";
      gain(at + "attention_norm", embed);
      linear(at + "attention/query", {heads, head_dim}, {embed}, s_.qkv_bias);
      linear(at + "attention/key", {kv_heads, head_dim}, {embed}, s_.qkv_bias);
      linear(at + "attention/value", {kv_heads, head_dim}, {embed}, s_.qkv_bias);
      if (caches_.pages > 0) {
        states_.cache(at + "attention/keys", caches_, kv_heads, head_dim, layer_);
        states_.cache(at + "attention/values", caches_, kv_heads, head_dim, layer_);
      }
      if (s_.qk_norm) {
        gain(at + "attention/query_norm", head_dim);
        gain(at + "attention/key_norm", head_dim);
      }
      linear(at + "attention/output", {embed}, {heads, head_dim}, s_.output_bias);
      gain(at + "mlp_norm", embed);
      linear(at + "mlp/gate", {mlp}, {embed}, s_.mlp_bias);
      linear(at + "mlp/up", {mlp}, {embed}, s_.mlp_bias);
      linear(at + "mlp/down", {embed}, {mlp}, s_.mlp_bias);
    }
    layer_ = -1;
    gain("final_norm", embed);
    if (!s_.tied) {
      states_.parameter("head/weights", {{"vocab", s_.vocab}, embed}, normal(s_.deviation), true);
    }
  }

 private:
  void gain(const std::string& name, const Dim& dim) {
    states_.parameter(name + "/gain", {dim}, constant(1), false, layer_);
  }

  void linear(const std::string& name, const Dims& outputs, const Dims& inputs, bool bias) {
    Dims dims = outputs;
    dims.insert(dims.end(), inputs.begin(), inputs.end());
    states_.parameter(name + "/weights", dims, normal(s_.deviation), true, layer_);
    if (bias) {
      states_.parameter(name + "/bias", outputs, constant(0), false, layer_);
    }
  }

  States& states_;
  const Sizes& s_;
  const CacheSizes& caches_;
  std::int32_t layer_ = -1;
};

/// The network for training, evaluation and prediction, and for decoding.
class Network {
 public:
  Network(Function& f, const Sizes& sizes, const Decoding* decoding = nullptr)
      : f_(f), s_(sizes), decoding_(decoding) {}

  /// tokens: [batch, seq]   returns [batch, seq, embed], after the last normalisation
  [[nodiscard]] Value body(const Value& tokens) {
    Value x = embedding(tokens, f_.state("embedding/tokens"));
    f_.cut_point("residual", x);
    for (std::int64_t layer = 0; layer < s_.layers; ++layer) {
      f_.set_layer(layer);
      f_.set_scope(layer_scope(layer));
      x = block(x, layer);
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
  [[nodiscard]] Value block(Value x, std::int64_t layer) {
    const std::string at = layer_scope(layer) + "/";
    x = x + attention(norm(x, at + "attention_norm"), layer, at + "attention/");
    f_.cut_point("attention_residual", x);
    const Value y = norm(x, at + "mlp_norm");
    const Value gate = silu(linear("bte,me->btm", y, at + "mlp/gate", s_.mlp_bias));
    const Value up = linear("bte,me->btm", y, at + "mlp/up", s_.mlp_bias);
    x = x + linear("btm,em->bte", gate * up, at + "mlp/down", s_.mlp_bias);
    f_.cut_point("residual", x);
    return x;
  }

  /// x: [batch, seq, embed]   returns the same shape
  [[nodiscard]] Value attention(const Value& x, std::int64_t layer, const std::string& at) {
    Value q = linear("bte,hde->bthd", x, at + "query", s_.qkv_bias);
    Value k = linear("bte,hde->bthd", x, at + "key", s_.qkv_bias);
    const Value v = linear("bte,hde->bthd", x, at + "value", s_.qkv_bias);
    if (s_.qk_norm) {
      q = norm(q, at + "query_norm");
      k = norm(k, at + "key_norm");
    }
    const Attention how{.window = layer >= s_.first_window_layer ? s_.window : 0, .group = s_.group};
    const Value positions = decoding_ != nullptr ? decoding_->positions() : Value();
    q = rope(q, positions, 1, s_.rope);
    k = rope(k, positions, 1, s_.rope);
    const std::string name = at.substr(0, at.size() - 1);
    const Value y =
        decoding_ != nullptr ? decoding_->attend(name, q, k, v, how) : scaled_dot_product_attention(q, k, v, how);
    return linear("bthd,ehd->bte", y, at + "output", s_.output_bias);
  }

  [[nodiscard]] Value norm(const Value& x, const std::string& name) {
    return rms_norm(x, f_.state(name + "/gain"), s_.epsilon);
  }

  [[nodiscard]] Value linear(const char* product, const Value& x, const std::string& name, bool bias) {
    const Value y = einsum(product, x, f_.state(name + "/weights"));
    return bias ? y + f_.state(name + "/bias") : y;
  }

  Function& f_;
  const Sizes& s_;
  const Decoding* decoding_;  ///< null: no caches
};

class Llama {
 public:
  static constexpr const char* help =
      "Llama's architecture and its relatives (Mistral, SmolLM2, Qwen2, Qwen3), trained on tokens";
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

  static constexpr const char* architectures = "LlamaForCausalLM MistralForCausalLM Qwen2ForCausalLM Qwen3ForCausalLM";

  void read_config(const HubConfig& config) const { llama::read_config(config); }
  void write_config(const ModelJob& job, ConfigOutput& config) const { llama::write_config(job, config); }
  void name_tensors(const ModelJob& job, TensorNames& names) const { llama::name_tensors(sizes(job), names); }
};

std::vector<Option> Llama::options() {
  std::vector<Option> all = {
      also_called(required(integer_option("layers", 1, 1, 1024, "transformer blocks")),
                  "n_layer n_layers num_layers num_hidden_layers depth n_blocks num_blocks"),
      also_called(optional(integer_option("heads", 1, 1, 65536, "query heads; width / 64 if it is left out")),
                  "n_head n_heads num_heads num_attention_heads attention_heads"),
      also_called(
          optional(integer_option("kv_heads", 1, 1, 65536,
                                  "heads of keys and values, which groups of query heads share; as many as heads "
                                  "if it is left out")),
          "n_kv_heads num_kv_heads num_key_value_heads num_query_groups"),
      also_called(required(integer_option("width", 1, 1, 262144, "columns of the residual stream")),
                  "n_embd hidden_size hidden_dim d_model dim embed_dim embedding_dim model_dim"),
      also_called(
          optional(integer_option("head_dim", 2, 2, 65536, "columns of a head; width / heads if it is left out")),
          "kv_channels d_head"),
      also_called(required(integer_option("hidden", 1, 1, 1048576, "columns between the matrices of SwiGLU")),
                  "intermediate_size ffn_hidden_size ffn_dim n_inner d_ff"),
      also_called(required(integer_option("context", 1, 1, 1048576, "tokens that a sequence has")),
                  "block_size seq_length seq_len sequence_length max_seq_len max_seq_length context_length "
                  "context_size n_ctx max_position_embeddings"),
      also_called(optional(integer_option("vocab", 1, 1, 2097152,
                                          "size of the vocabulary, more than the highest token; from the tokenizer "
                                          "where there is text")),
                  "vocab_size n_vocab padded_vocab_size vocabulary_size num_tokens"),
      also_called(boolean_option("tied", false, "the token embedding is the output layer too"),
                  "tie_word_embeddings tie_embeddings weight_tying tied_embeddings"),
      boolean_option("qkv_bias", false, "biases of queries, keys and values, as in Qwen2"),
      boolean_option("output_bias", false, "a bias of attention's output"),
      boolean_option("mlp_bias", false, "biases of SwiGLU's matrices"),
      also_called(boolean_option("qk_norm", false, "RMSNorm of each head of queries and keys, as in Qwen3"),
                  "use_qk_norm qk_layernorm"),
      also_called(integer_option("window", 0, 0, std::int64_t{1} << 30,
                                 "a token attends to itself and this many tokens less one before it; 0: to all"),
                  "sliding_window attention_window"),
      also_called(integer_option("first_window_layer", 0, 0, 1024, "layers before this one attend to all tokens"),
                  "max_window_layers"),
      also_called(number_option("epsilon", 1e-5, 1e-12, 1, "of RMSNorm"), "rms_norm_eps norm_eps layernorm_epsilon"),
      also_called(number_option("deviation", 0.02, 0, 10, "of the first values of matrices"),
                  "initializer_range init_std"),
  };
  const std::vector<Option> rotation = rotation_options();
  all.insert(all.end(), rotation.begin(), rotation.end());
  return all;
}

}  // namespace

SHARDRUN_EXPORT_MODEL(Llama, "llama", "1.0")
