#include "hub.h"

#include <string>
#include <vector>

namespace llama {
namespace {

using namespace shardrun::sdk;

/// Reads the settings of rotary embeddings. transformers 5 writes them to `rope_parameters`, transformers 4 to
/// `rope_theta` and `rope_scaling`, which may be null.
void read_rotation(const HubConfig& config) {
  const bool is_new = config.has("rope_parameters.rope_type") || config.has("rope_parameters.rope_theta");
  const std::string at = is_new ? "rope_parameters." : "rope_scaling.";
  config.set("theta", is_new ? config.number(at + "rope_theta", config.number("rope_theta", 10000))
                             : config.number("rope_theta", 10000));
  config.ignore({"rope_scaling", "rope_parameters"});
  const std::string type = config.text(at + "rope_type", config.text(at + "type", "default"));

  if (const double share = config.number(at + "partial_rotary_factor", 1); share != 1) {
    throw InvalidJob("config.json: " + at + "partial_rotary_factor = " + HubConfig::digits(share) +
                     ": only 1 is supported");
  }
  if (type == "default") {
    return;
  }
  if (type != "linear" && type != "llama3" && type != "yarn") {
    throw InvalidJob("config.json: " + at + "rope_type = " + type +
                     ": the rotations that are known are default, linear, llama3 and yarn");
  }
  config.set("scaling", type);
  const auto context = static_cast<double>(config.integer("max_position_embeddings", 2048));
  const double original = config.number(at + "original_max_position_embeddings", context);
  config.set("scaling_factor", config.number(at + "factor", context / original));
  if (type != "linear") {
    config.set("original_context", original);
  }
  if (type == "llama3") {
    config.set("low_frequency_factor", config.number(at + "low_freq_factor"));
    config.set("high_frequency_factor", config.number(at + "high_freq_factor"));
  }
  if (type == "yarn") {
    config.set("beta_fast", config.number(at + "beta_fast", 32));
    config.set("beta_slow", config.number(at + "beta_slow", 1));
    config.set("whole_pairs", config.boolean(at + "truncate", true));
    for (const char* key : {"mscale", "mscale_all_dim"}) {
      if (config.has(at + key)) {
        throw InvalidJob("config.json: " + at + key + " is not supported");
      }
    }
    if (config.has(at + "attention_factor")) {
      config.set("attention_factor", config.number(at + "attention_factor"));
    }
  }
}

/// Reads the sliding window. Mistral uses it in all layers; Qwen only with `use_sliding_window`, and from the layer
/// `max_window_layers` on.
void read_window(const HubConfig& config, const std::string& architecture) {
  const bool is_qwen = architecture.starts_with("Qwen");
  const bool slides = is_qwen ? config.boolean("use_sliding_window", false) : architecture.starts_with("Mistral");
  const std::int64_t first = is_qwen ? config.integer("max_window_layers", 28) : 0;
  const bool has_window = slides && config.has("sliding_window");
  if (has_window) {
    config.set("window", config.integer("sliding_window"));
    config.set("first_window_layer", first);
  }
  config.ignore({"sliding_window", "max_window_layers", "use_sliding_window"});
  // Entries for layers that do not exist are not read, so the host refuses them as unknown keys.
  const std::int64_t layers = config.integer("num_hidden_layers");
  const auto key_of = [](std::int64_t layer) { return "layer_types." + std::to_string(layer); };
  for (std::int64_t layer = 0; layer < layers && config.has(key_of(layer)); ++layer) {
    config.require(key_of(layer), has_window && layer >= first ? "sliding_attention" : "full_attention");
  }
  config.ignore({"layer_types"});
}

void add_rotation(const OptionValues& options, const ConfigOutput& config) {
  const std::string at = "rope_parameters.";
  const std::string scaling = options.text("scaling");
  config.number(at + "rope_theta", options.number("theta"));
  config.text(at + "rope_type", scaling == "none" ? "default" : scaling);
  if (scaling == "none") {
    return;
  }
  config.number(at + "factor", options.number("scaling_factor"));
  if (scaling != "linear") {
    config.integer(at + "original_max_position_embeddings",
                   static_cast<std::int64_t>(options.number("original_context")));
  }
  if (scaling == "llama3") {
    config.number(at + "low_freq_factor", options.number("low_frequency_factor"));
    config.number(at + "high_freq_factor", options.number("high_frequency_factor"));
  }
  if (scaling == "yarn") {
    config.number(at + "beta_fast", options.number("beta_fast"));
    config.number(at + "beta_slow", options.number("beta_slow"));
    config.boolean(at + "truncate", options.boolean("whole_pairs"));
    if (options.has("attention_factor")) {
      config.number(at + "attention_factor", options.number("attention_factor"));
    }
  }
}

/// The {architecture, model_type} of the model family that computes what these sizes describe.
std::pair<std::string, std::string> family_of(const Sizes& s) {
  if (s.mlp_bias && (s.qk_norm || s.window > 0 || s.qkv_bias != s.output_bias)) {
    throw InvalidJob("[model] mlp_bias: no architecture of others has it with these settings", "model.mlp_bias");
  }
  if (s.qk_norm) {
    if (s.qkv_bias != s.output_bias) {
      throw InvalidJob("[model] qk_norm: Qwen3 has biases of queries, keys, values and the output, or none",
                       "model.qkv_bias");
    }
    return {"Qwen3ForCausalLM", "qwen3"};
  }
  if (s.qkv_bias && !s.output_bias) {
    return {"Qwen2ForCausalLM", "qwen2"};
  }
  if (s.output_bias && !s.qkv_bias) {
    throw InvalidJob("[model] output_bias: no architecture of others has it without qkv_bias", "model.output_bias");
  }
  if (s.window > 0) {
    if (s.qkv_bias || s.first_window_layer > 0) {
      throw InvalidJob("[model] window: Mistral has it in all layers, and no biases", "model.window");
    }
    return {"MistralForCausalLM", "mistral"};
  }
  return {"LlamaForCausalLM", "llama"};
}

}  // namespace

void read_config(const HubConfig& config) {
  const std::string architecture = config.text("architectures.0");
  const bool is_qwen2 = architecture.starts_with("Qwen2");
  const bool is_qwen3 = architecture.starts_with("Qwen3");
  config.set("layers", config.integer("num_hidden_layers"));
  config.set("heads", config.integer("num_attention_heads"));
  config.set("kv_heads", config.integer("num_key_value_heads", config.integer("num_attention_heads")));
  config.set("width", config.integer("hidden_size"));
  if (config.has("head_dim") || is_qwen3) {
    config.set("head_dim", config.integer("head_dim", 128));
  }
  config.set("hidden", config.integer("intermediate_size"));
  config.set("context", config.integer("max_position_embeddings", 2048));
  config.set("vocab", config.integer("vocab_size"));
  config.set("tied", config.boolean("tie_word_embeddings", false));
  config.set("epsilon", config.number("rms_norm_eps", 1e-6));
  config.set("deviation", config.number("initializer_range", 0.02));
  const bool has_biases = config.boolean("attention_bias", false);
  config.set("qkv_bias", is_qwen2 || has_biases);
  config.set("output_bias", has_biases && !is_qwen2);
  config.set("mlp_bias", config.boolean("mlp_bias", false));
  config.set("qk_norm", is_qwen3);
  read_rotation(config);
  read_window(config, architecture);
  config.require("hidden_act", "silu");
  if (config.number("attention_dropout", 0) != 0) {
    throw InvalidJob("config.json: attention_dropout = " + HubConfig::digits(config.number("attention_dropout")) +
                     ": the model has none");
  }
  config.ignore_usual();
  config.ignore({"pretraining_tp", "is_llama_config", "is_custom_code"});
  config.require("rope_interleaved", "false");
}

void write_config(const ModelJob& job, const ConfigOutput& config) {
  const Sizes s = sizes(job);
  const auto [architecture, type] = family_of(s);
  config.text("architectures.0", architecture);
  config.text("model_type", type);
  config.integer("num_hidden_layers", s.layers);
  config.integer("num_attention_heads", s.kv_heads * s.group);
  config.integer("num_key_value_heads", s.kv_heads);
  config.integer("hidden_size", s.width);
  config.integer("head_dim", s.head_dim);
  config.integer("intermediate_size", s.hidden);
  config.integer("max_position_embeddings", s.context);
  config.integer("vocab_size", s.vocab);
  config.boolean("tie_word_embeddings", s.tied);
  config.number("rms_norm_eps", s.epsilon);
  config.number("initializer_range", s.deviation);
  config.text("hidden_act", "silu");
  if (type != "mistral") {
    config.boolean("attention_bias", s.output_bias);
  }
  if (type == "llama") {
    config.boolean("mlp_bias", s.mlp_bias);
  } else if (type == "mistral") {
    config.integer("sliding_window", s.window);
  } else {
    config.boolean("use_sliding_window", s.window > 0);
    if (s.window > 0) {
      config.integer("sliding_window", s.window);
      config.integer("max_window_layers", s.first_window_layer);
    }
  }
  add_rotation(job.options, config);
}

void name_tensors(const Sizes& s, const TensorNames& names) {
  const std::int64_t queries = s.kv_heads * s.group * s.head_dim;
  const std::int64_t keys = s.kv_heads * s.head_dim;
  const auto linear = [&](const std::string& state, const std::string& name, std::int64_t outputs, std::int64_t inputs,
                          bool bias) {
    names.add(state + "/weights", name + ".weight", {outputs, inputs});
    if (bias) {
      names.add(state + "/bias", name + ".bias", {outputs});
    }
  };
  names.add("embedding/tokens", "model.embed_tokens.weight", {s.vocab, s.width});
  for (std::int64_t layer = 0; layer < s.layers; ++layer) {
    const std::string state = layer_scope(layer) + "/";
    const std::string name = "model.layers." + std::to_string(layer) + ".";
    names.add(state + "attention_norm/gain", name + "input_layernorm.weight", {s.width});
    linear(state + "attention/query", name + "self_attn.q_proj", queries, s.width, s.qkv_bias);
    linear(state + "attention/key", name + "self_attn.k_proj", keys, s.width, s.qkv_bias);
    linear(state + "attention/value", name + "self_attn.v_proj", keys, s.width, s.qkv_bias);
    linear(state + "attention/output", name + "self_attn.o_proj", s.width, queries, s.output_bias);
    if (s.qk_norm) {
      names.add(state + "attention/query_norm/gain", name + "self_attn.q_norm.weight", {s.head_dim});
      names.add(state + "attention/key_norm/gain", name + "self_attn.k_norm.weight", {s.head_dim});
    }
    names.add(state + "mlp_norm/gain", name + "post_attention_layernorm.weight", {s.width});
    linear(state + "mlp/gate", name + "mlp.gate_proj", s.hidden, s.width, s.mlp_bias);
    linear(state + "mlp/up", name + "mlp.up_proj", s.hidden, s.width, s.mlp_bias);
    linear(state + "mlp/down", name + "mlp.down_proj", s.width, s.hidden, s.mlp_bias);
  }
  names.add("final_norm/gain", "model.norm.weight", {s.width});
  if (!s.tied) {
    names.add("head/weights", "lm_head.weight", {s.vocab, s.width});
  } else {
    names.leave_out("lm_head.weight");  // a copy of the embedding
  }
  names.leave_out("*.rotary_emb.inv_freq");
}

}  // namespace llama
