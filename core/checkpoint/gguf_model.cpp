#include "core/checkpoint/gguf_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <numbers>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/base/text.h"

namespace shardrun::checkpoint {
namespace {

using files::GgufContents;
using files::GgufTensor;
using files::GgufValue;
using sdk::ConfigValue;

/// How a tensor in a GGUF file differs from the same tensor of Hugging Face's model.
enum class Layout {
  same,
  turned,      ///< rows i and i + half of a head in Hugging Face's model are rows 2 i and 2 i + 1 in the file
  transposed,  ///< [inputs, outputs] in Hugging Face's model, [outputs, inputs] in the file
};

/// A tensor's name in GGUF (`here`) and in Hugging Face's model (`there`), without .weight and .bias.
struct Renamed {
  std::string_view here;
  std::string_view there;
  Layout layout = Layout::same;
};

/// Keys of a GGUF file's metadata without the prefix "ARCHITECTURE.", each with the setting's key in config.json.
using Keys = std::span<const std::pair<std::string_view, std::string_view>>;

struct Family {
  std::string_view architecture;  ///< value of general.architecture in a GGUF file
  std::string_view hub;           ///< value of `architectures` in a config.json
  Keys keys;
  std::span<const Renamed> names;     ///< tensors outside of layers
  std::string_view layer;             ///< the text before a layer's number in names of Hugging Face
  std::span<const Renamed> in_layer;  ///< tensors of a layer; the names after the layer's number
};

constexpr std::pair<std::string_view, std::string_view> usual_keys[] = {
    {"block_count", "num_hidden_layers"},
    {"embedding_length", "hidden_size"},
    {"feed_forward_length", "intermediate_size"},
    {"context_length", "max_position_embeddings"},
    {"attention.head_count", "num_attention_heads"},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.key_length", "head_dim"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps"},
    {"attention.sliding_window", "sliding_window"},
    {"rope.freq_base", "rope_theta"},
    {"vocab_size", "vocab_size"}};

constexpr std::pair<std::string_view, std::string_view> gpt2_keys[] = {
    {"block_count", "n_layer"},         {"embedding_length", "n_embd"},
    {"feed_forward_length", "n_inner"}, {"context_length", "n_positions"},
    {"attention.head_count", "n_head"}, {"attention.layer_norm_epsilon", "layer_norm_epsilon"},
    {"vocab_size", "vocab_size"}};

constexpr Renamed usual_names[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};

constexpr Renamed gpt2_names[] = {{"token_embd", "transformer.wte"},
                                  {"position_embd", "transformer.wpe"},
                                  {"output_norm", "transformer.ln_f"},
                                  {"output", "lm_head"}};

template <Layout queries_and_keys>
constexpr Renamed usual_layer[] = {{"attn_norm", "input_layernorm"},
                                   {"attn_q", "self_attn.q_proj", queries_and_keys},
                                   {"attn_k", "self_attn.k_proj", queries_and_keys},
                                   {"attn_v", "self_attn.v_proj"},
                                   {"attn_output", "self_attn.o_proj"},
                                   {"attn_q_norm", "self_attn.q_norm"},
                                   {"attn_k_norm", "self_attn.k_norm"},
                                   {"ffn_norm", "post_attention_layernorm"},
                                   {"ffn_gate", "mlp.gate_proj"},
                                   {"ffn_up", "mlp.up_proj"},
                                   {"ffn_down", "mlp.down_proj"}};

constexpr Renamed gpt2_layer[] = {{"attn_norm", "ln_1"},
                                  {"attn_qkv", "attn.c_attn", Layout::transposed},
                                  {"attn_output", "attn.c_proj", Layout::transposed},
                                  {"ffn_norm", "ln_2"},
                                  {"ffn_up", "mlp.c_fc", Layout::transposed},
                                  {"ffn_down", "mlp.c_proj", Layout::transposed}};

constexpr Family families[] = {
    {"llama", "LlamaForCausalLM", usual_keys, usual_names, "model.layers.", usual_layer<Layout::turned>},
    {"qwen2", "Qwen2ForCausalLM", usual_keys, usual_names, "model.layers.", usual_layer<Layout::same>},
    {"qwen3", "Qwen3ForCausalLM", usual_keys, usual_names, "model.layers.", usual_layer<Layout::same>},
    {"gpt2", "GPT2LMHeadModel", gpt2_keys, gpt2_names, "transformer.h.", gpt2_layer}};

constexpr const char* rotation_factors = "rope_freqs.weight";

// Metadata ------------------------------------------------------------------------------------------------------------

ConfigValue number_value(std::string key, double number) {
  return {SR_CONFIG_NUMBER, std::move(key), fmt::format("{}", number)};
}

/// Adds a value of the metadata as a config value; for an array, one value for each element.
void add_value(const std::string& key, const GgufValue& value, std::vector<ConfigValue>& to) {
  std::visit(
      [&](const auto& found) {
        using Found = std::decay_t<decltype(found)>;
        if constexpr (std::is_same_v<Found, bool>) {
          to.push_back({SR_CONFIG_BOOLEAN, key, found ? "true" : "false"});
        } else if constexpr (std::is_same_v<Found, std::string>) {
          to.push_back({SR_CONFIG_TEXT, key, found});
        } else if constexpr (std::is_arithmetic_v<Found>) {
          to.push_back({SR_CONFIG_NUMBER, key, fmt::format("{}", found)});
        } else {
          for (std::size_t i = 0; i < found.size(); ++i) {
            add_value(fmt::format("{}.{}", key, i), GgufValue(found[i]), to);
          }
        }
      },
      value);
}

/// Settings in config.json of rotary embeddings of type llama3. grown() makes the factors of wavelengths of them.
struct Growth {
  double factor = 1;
  double high = 4;  ///< high_freq_factor; low_freq_factor is always 1
  double original = 8192;
};

double grown(const Growth& growth, double wavelength) {
  const double turns = growth.original / wavelength;
  if (turns > growth.high) {
    return 1;
  }
  if (turns < 1) {
    return growth.factor;
  }
  const double share = (turns - 1) / (growth.high - 1);
  return 1 / ((1 - share) / growth.factor + share);
}

/// Finds settings that give these factors, or returns nothing if none do. Many settings give the same factors, so
/// low_freq_factor is set to 1.
std::optional<Growth> growth_of(const std::vector<float>& factors, const std::vector<double>& wavelengths) {
  const double factor = static_cast<double>(factors.back());
  std::vector<std::size_t> between;
  std::size_t last_same = 0;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    last_same = factors[i] == 1.0F ? i : last_same;
    if (factors[i] != 1.0F && factors[i] != factors.back()) {
      between.push_back(i);
    }
  }
  std::vector<Growth> tried = {{factor, 4, 8192}};
  const auto share_of = [&](std::size_t i) {
    return (1 / static_cast<double>(factors[i]) - 1 / factor) / (1 - 1 / factor);
  };
  if (between.size() > 1) {
    const std::size_t first = between.front();
    const std::size_t last = between.back();
    const double slope = (share_of(first) - share_of(last)) / (1 / wavelengths[first] - 1 / wavelengths[last]);
    const double offset = slope / wavelengths[first] - share_of(first);
    tried.push_back({factor, std::round(1 + 1 / offset), std::round(slope / offset)});
    tried.push_back({factor, 1 + 1 / offset, slope / offset});
  } else if (between.size() == 1) {
    tried.push_back({factor, 4, wavelengths[between[0]] * (1 + 3 * share_of(between[0]))});
  } else if (last_same + 1 < factors.size()) {
    tried.push_back({factor, 1.0001, wavelengths[last_same] * 1.001});
  }
  constexpr double tolerance = 1e-5;
  for (const Growth& growth : tried) {
    bool fits = growth.high > 1 && growth.original > 0;
    for (std::size_t i = 0; fits && i < factors.size(); ++i) {
      const double expected = grown(growth, wavelengths[i]);
      fits = std::abs(static_cast<double>(factors[i]) - expected) <= tolerance * expected;
    }
    if (fits) {
      return growth;
    }
  }
  return std::nullopt;
}

/// A tensor in one of the model's GGUF files.
struct Stored {
  const files::SteadyFile* file = nullptr;
  GgufTensor tensor;
  Layout layout = Layout::same;
  std::int64_t head_rows = 0;            ///< for Layout::turned: the rows of one head
  std::string name_there = tensor.name;  ///< in Hugging Face's model
  std::vector<std::int64_t> shape_there = tensor.shape;
};

/// A tensor's name in Hugging Face's model, and its layout in the file. An unknown name stays the same.
std::pair<std::string, Layout> renamed(const Family& family, const std::string& name) {
  const std::size_t dot = std::min(name.rfind('.'), name.size());
  const std::string_view stem = std::string_view(name).substr(0, dot);
  const std::string_view kind = std::string_view(name).substr(dot);
  constexpr std::string_view in_layer = "blk.";
  const std::size_t end = stem.find('.', in_layer.size());
  const bool is_in_layer = stem.starts_with(in_layer) && end != std::string_view::npos;
  const std::span<const Renamed> names = is_in_layer ? family.in_layer : family.names;
  const auto found = std::ranges::find(names, is_in_layer ? stem.substr(end + 1) : stem, &Renamed::here);
  if (found == names.end()) {
    return {name, Layout::same};
  }
  const std::string_view number = is_in_layer ? stem.substr(in_layer.size(), end - in_layer.size()) : "";
  return {is_in_layer ? fmt::format("{}{}.{}{}", family.layer, number, found->there, kind)
                      : fmt::format("{}{}", found->there, kind),
          found->layout == Layout::transposed && kind != ".weight" ? Layout::same : found->layout};
}

/// Converts the metadata of a known family to the keys of a config.json.
class Translation {
 public:
  Translation(const GgufContents& gguf, const Family& family, const std::filesystem::path& path)
      : gguf_(gguf), family_(family), prefix_(std::string(family.architecture) + "."), source_(path.native()) {}

  std::vector<ConfigValue> config(const std::optional<std::vector<float>>& factors) {
    std::string hub(family_.hub);
    for (const auto& [key, name] : family_.keys) {
      std::optional<GgufValue> value = take(std::string(key));
      if (!value) {
        continue;
      }
      if (key == "attention.sliding_window") {
        if (integer_in(key, *value) == 0) {
          continue;
        }
        hub = family_.architecture == "llama" ? "MistralForCausalLM" : hub;
        config_.push_back({SR_CONFIG_BOOLEAN, "use_sliding_window", "true"});
      }
      add_value(std::string(name), *value, config_);
    }
    config_.push_back({SR_CONFIG_TEXT, "architectures.0", hub});
    const GgufTensor* const tokens = find("token_embd.weight");
    if (tokens != nullptr && !tokens->shape.empty() && !has("vocab_size")) {
      config_.push_back({SR_CONFIG_NUMBER, "vocab_size", std::to_string(tokens->shape[0])});
    }
    config_.push_back({SR_CONFIG_BOOLEAN, "tie_word_embeddings", find("output.weight") == nullptr ? "true" : "false"});
    if (family_.keys.data() == usual_keys) {
      add_usual(factors);
    }
    refuse_rest();
    return std::move(config_);
  }

  /// Sets the name and shape that each tensor has in Hugging Face's model, and its layout in the file.
  void place(std::vector<Stored>& tensors) const {
    std::map<std::string, std::string> names;  // names in Hugging Face's model and in the file
    for (Stored& stored : tensors) {
      std::vector<std::int64_t>& shape = stored.shape_there;
      std::tie(stored.name_there, stored.layout) = renamed(family_, stored.tensor.name);
      const std::string name = printable(shown(stored.tensor.name));
      const auto [first, is_new] = names.emplace(stored.name_there, name);
      if (!is_new) {
        refuse(fmt::format("the tensors '{}' and '{}' are both the model's {}, expected one of them", first->second,
                           name, printable(shown(stored.name_there))));
      }
      if (stored.layout == Layout::turned) {
        stored.head_rows = head_dim();
        if (shape.empty() || shape.size() > 2 || shape[0] % stored.head_rows != 0) {
          refuse(fmt::format("the tensor '{}' is [{}], expected rows of heads of {}", name, fmt::join(shape, ", "),
                             stored.head_rows));
        }
      } else if (stored.layout == Layout::transposed) {
        if (shape.size() != 2) {
          refuse(fmt::format("the tensor '{}' is [{}], expected a matrix", name, fmt::join(shape, ", ")));
        }
        std::swap(shape[0], shape[1]);
      }
    }
  }

 private:
  /// The size of one head of queries and keys.
  std::int64_t head_dim() const {
    const std::int64_t heads = integer("attention.head_count", 0);
    const std::int64_t columns =
        heads < 1 ? 0 : integer("attention.key_length", integer("embedding_length", 0) / heads);
    if (columns < 2 || columns % 2 != 0) {
      refuse(
          fmt::format("{}attention.head_count and embedding_length make heads of {} columns, expected an even number",
                      prefix_, columns));
    }
    return columns;
  }

  [[noreturn]] void refuse(const std::string& fault) const {
    throw Error(ErrorCode::data, fmt::format("'{}': {}", source_, fault));
  }

  const GgufTensor* find(std::string_view name) const {
    const auto found = std::ranges::find(gguf_.tensors, name, &GgufTensor::name);
    return found == gguf_.tensors.end() ? nullptr : &*found;
  }

  bool has(std::string_view key) const { return std::ranges::find(config_, key, &ConfigValue::key) != config_.end(); }

  /// Returns a value of the metadata, or nothing if it is missing, and marks its key as understood. For a list with a
  /// value per layer, returns the one value. Throws Error{data} if the list's values differ.
  std::optional<GgufValue> take(const std::string& key) {
    taken_.insert(prefix_ + key);
    const auto found = gguf_.metadata.find(prefix_ + key);
    if (found == gguf_.metadata.end()) {
      return std::nullopt;
    }
    const auto* const list = std::get_if<std::vector<std::int64_t>>(&found->second);
    if (list == nullptr) {
      return found->second;
    }
    if (list->empty() || std::ranges::any_of(*list, [&](std::int64_t value) { return value != list->front(); })) {
      refuse(fmt::format("{}{} differs from layer to layer, which no model here has", prefix_, key));
    }
    return GgufValue(list->front());
  }

  std::int64_t integer_in(std::string_view key, const GgufValue& value) const {
    const auto* const found = std::get_if<std::int64_t>(&value);
    if (found == nullptr) {
      refuse(fmt::format("{}{} should be a whole number", prefix_, key));
    }
    return *found;
  }

  std::int64_t integer(const std::string& key, std::int64_t otherwise) const {
    return gguf_.integer(prefix_ + key, source_).value_or(otherwise);
  }

  std::optional<double> take_number(const std::string& key) {
    const std::optional<GgufValue> value = take(key);
    if (!value) {
      return std::nullopt;
    }
    std::optional<double> number;
    std::visit(
        [&](const auto& found) {
          if constexpr (std::is_arithmetic_v<std::decay_t<decltype(found)>>) {
            number = static_cast<double>(found);
          }
        },
        *value);
    if (!number) {
      refuse(fmt::format("{}{} should be a number", prefix_, key));
    }
    return number;
  }

  void add_usual(const std::optional<std::vector<float>>& factors) {
    const std::int64_t columns = head_dim();
    if (!has("head_dim")) {
      config_.push_back({SR_CONFIG_NUMBER, "head_dim", std::to_string(columns)});
    }
    for (const char* key : {"attention.value_length", "rope.dimension_count"}) {
      if (const std::optional<double> found = take_number(key); found && *found != static_cast<double>(columns)) {
        refuse(fmt::format("{}{} is {}, and heads have {} columns: no model here has such", prefix_, key, *found,
                           columns));
      }
    }
    const auto add_biases = [&](const char* key, const char* tensor) {
      config_.push_back({SR_CONFIG_BOOLEAN, key, find(tensor) != nullptr ? "true" : "false"});
    };
    if (family_.architecture == "llama") {
      add_biases("attention_bias", "blk.0.attn_q.bias");
      add_biases("mlp_bias", "blk.0.ffn_gate.bias");
    } else if (family_.architecture == "qwen3") {
      add_biases("attention_bias", "blk.0.attn_q.bias");
    }
    for (const char* key : {"expert_count", "expert_used_count"}) {
      if (const std::optional<double> found = take_number(key); found && *found != 0) {
        refuse(fmt::format("{}{} is {}: models of experts are not read", prefix_, key, *found));
      }
    }
    static_cast<void>(take("tensor_data_layout"));
    add_scaling(factors, columns);
  }

  void add_scaling(const std::optional<std::vector<float>>& factors, std::int64_t columns) {
    static_cast<void>(take("rope.scaling.type"));
    const std::optional<std::string> text = gguf_.text(prefix_ + "rope.scaling.type", source_);
    const std::optional<double> old_factor = take_number("rope.scale_linear");
    const std::optional<double> factor = take_number("rope.scaling.factor");
    const std::optional<double> original = take_number("rope.scaling.original_context_length");
    const std::optional<double> attention = take_number("rope.scaling.attn_factor");
    const std::optional<double> fast = take_number("rope.scaling.yarn_beta_fast");
    const std::optional<double> slow = take_number("rope.scaling.yarn_beta_slow");
    static_cast<void>(take("rope.scaling.finetuned"));
    const double by = factor.value_or(old_factor.value_or(1));
    const std::string type = text.value_or(by != 1 ? "linear" : "none");
    if (type != "none" && type != "linear" && type != "yarn") {
      refuse(fmt::format("{}rope.scaling.type = {}; read are none, linear and yarn", prefix_, printable(shown(type))));
    }
    if (type != "yarn" && attention && *attention != 1) {
      refuse(fmt::format("{0}rope.scaling.attn_factor = {1}, and {0}rope.scaling.type is {2}: only yarn's is read",
                         prefix_, *attention, type));
    }
    const std::string at = "rope_scaling.";
    if (factors) {
      if (type != "none") {
        refuse(fmt::format("it has {} and {}rope.scaling.type = {}, expected one of them", rotation_factors, prefix_,
                           type));
      }
      add_growth(*factors, columns);
      return;
    }
    if (type == "none") {
      return;
    }
    config_.push_back({SR_CONFIG_TEXT, at + "rope_type", type});
    config_.push_back(number_value(at + "factor", by));
    if (type == "yarn") {
      const std::pair<const char*, std::optional<double>> members[] = {
          {"original_max_position_embeddings", original}, {"beta_fast", fast}, {"beta_slow", slow}};
      for (const auto& [key, value] : members) {
        if (value) {
          config_.push_back(number_value(at + key, *value));
        }
      }
      if (attention && *attention != 1) {
        config_.push_back(number_value(at + "attention_factor", *attention * (1 + 0.1 * std::log(by))));
      }
    }
  }

  void add_growth(const std::vector<float>& factors, std::int64_t columns) {
    if (std::ranges::all_of(factors, [](float factor) { return factor == 1.0F; })) {
      return;
    }
    const double theta = take_number("rope.freq_base").value_or(10000);
    std::vector<double> wavelengths;
    for (std::size_t i = 0; i < factors.size(); ++i) {
      wavelengths.push_back(2 * std::numbers::pi *
                            std::pow(theta, 2 * static_cast<double>(i) / static_cast<double>(columns)));
    }
    const bool fits = factors.size() == static_cast<std::size_t>(columns / 2);
    const std::optional<Growth> growth = fits ? growth_of(factors, wavelengths) : std::nullopt;
    if (!growth) {
      refuse(fmt::format("{} has factors that do not follow from a llama3 rotation", rotation_factors));
    }
    const std::string at = "rope_scaling.";
    config_.push_back({SR_CONFIG_TEXT, at + "rope_type", "llama3"});
    config_.push_back(number_value(at + "factor", growth->factor));
    config_.push_back(number_value(at + "low_freq_factor", 1));
    config_.push_back(number_value(at + "high_freq_factor", growth->high));
    config_.push_back(number_value(at + "original_max_position_embeddings", growth->original));
  }

  /// Throws Error{data} if the metadata has a key that take() was not asked for. Such a key can change the model.
  void refuse_rest() const {
    for (const auto& [key, value] : gguf_.metadata) {
      if (key.starts_with(prefix_) && !taken_.contains(key)) {
        std::vector<ConfigValue> shown_values;
        add_value(key, value, shown_values);
        refuse(fmt::format("its metadata {} = {} is not known, and may change what the model computes",
                           printable(shown(key)),
                           shown_values.empty() ? "[]" : printable(shown(shown_values[0].text))));
      }
    }
  }

  const GgufContents& gguf_;
  const Family& family_;
  std::string prefix_;
  std::string source_;
  std::set<std::string, std::less<>> taken_;
  std::vector<ConfigValue> config_;
};

// Tensors -------------------------------------------------------------------------------------------------------------

/// Reads `count` elements from index `first` on, in the file's order, as float32.
std::vector<float> numbers_of(const Stored& stored, std::int64_t first, std::int64_t count) {
  const files::GgufBlock& block = files::block_of(stored.tensor.type);
  const auto elements = static_cast<std::int64_t>(block.elements);
  const std::int64_t begin = first / elements;
  const std::int64_t end = (first + count + elements - 1) / elements;
  std::vector<std::byte> blocks(static_cast<std::size_t>(end - begin) * block.bytes);
  stored.file->read(static_cast<std::size_t>(stored.tensor.offset) + static_cast<std::size_t>(begin) * block.bytes,
                    blocks);
  stored.file->require_unchanged();
  std::vector<float> numbers(static_cast<std::size_t>((end - begin) * elements));
  dequantise(stored.tensor.type, blocks, numbers);
  numbers.resize(static_cast<std::size_t>(first - begin * elements + count));
  numbers.erase(numbers.begin(), numbers.begin() + (first - begin * elements));
  return numbers;
}

/// Reads elements of a tensor with Layout::turned, in Hugging Face's order. Reads all heads that contain them.
std::vector<float> turned_numbers(const Stored& stored, std::int64_t first, std::int64_t count) {
  const std::int64_t width = stored.tensor.shape.size() > 1 ? stored.tensor.shape.back() : 1;
  const std::int64_t head = stored.head_rows * width;
  const std::int64_t begin = first / head * head;
  const std::int64_t end = (first + count + head - 1) / head * head;
  const std::vector<float> heads = numbers_of(stored, begin, end - begin);
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (std::int64_t at = first; at < first + count;) {
    const std::int64_t row = at / width % stored.head_rows;
    const std::int64_t half = stored.head_rows / 2;
    const std::int64_t from = at / head * head + (row % half * 2 + row / half) * width + at % width;
    const std::int64_t run = std::min(width - at % width, first + count - at);
    std::copy_n(heads.begin() + (from - begin), run, numbers.begin() + (at - first));
    at += run;
  }
  return numbers;
}

/// Reads tensors in the layout of Hugging Face's model. Keeps at most one tensor in memory: the last one that it had
/// to transpose.
class GgufTensors {
 public:
  explicit GgufTensors(std::vector<Stored> tensors) : tensors_(std::move(tensors)) {}

  void read(std::size_t tensor, std::int64_t first, std::span<std::byte> to) {
    const Stored& stored = tensors_[tensor];
    const auto count = static_cast<std::int64_t>(to.size() / sizeof(float));
    if (stored.layout == Layout::transposed) {
      if (held_ != tensor) {
        hold(tensor);
      }
      std::memcpy(to.data(), &whole_[static_cast<std::size_t>(first)], to.size());
      return;
    }
    const std::vector<float> numbers =
        stored.layout == Layout::turned ? turned_numbers(stored, first, count) : numbers_of(stored, first, count);
    std::memcpy(to.data(), numbers.data(), to.size());
  }

 private:
  void hold(std::size_t tensor) {
    held_ = std::nullopt;
    const std::vector<std::int64_t>& shape = tensors_[tensor].tensor.shape;
    const std::vector<float> numbers = numbers_of(tensors_[tensor], 0, files::elements_of(tensors_[tensor].tensor));
    const auto rows = static_cast<std::size_t>(shape[0]);
    const auto columns = static_cast<std::size_t>(shape[1]);
    whole_.resize(numbers.size());
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) {
        whole_[c * rows + r] = numbers[r * columns + c];
      }
    }
    held_ = tensor;
  }

  std::vector<Stored> tensors_;
  std::optional<std::size_t> held_;
  std::vector<float> whole_;
};

// Files ---------------------------------------------------------------------------------------------------------------

std::string part_ending(std::int64_t part, std::int64_t parts) {
  return fmt::format("-{:05}-of-{:05}.gguf", part + 1, parts);
}

std::string architecture_of(const GgufContents& contents, const std::filesystem::path& path) {
  const std::optional<std::string> architecture = contents.text("general.architecture", path.native());
  if (!architecture) {
    throw Error(ErrorCode::data,
                fmt::format("'{}': its metadata has no general.architecture, and so does not say which "
                            "model it is",
                            path.native()));
  }
  if (const std::string type = contents.text("general.type", path.native()).value_or("model"); type != "model") {
    throw Error(ErrorCode::data,
                fmt::format("'{}': general.type = {}, expected model", path.native(), printable(shown(type))));
  }
  return *architecture;
}

/// Removes rope_freqs from the list, and returns its first 4096 elements at most. Returns nothing if it is not there.
std::optional<std::vector<float>> take_factors(std::vector<Stored>& tensors) {
  const auto found =
      std::ranges::find(tensors, rotation_factors, [](const Stored& stored) { return stored.tensor.name; });
  if (found == tensors.end()) {
    return std::nullopt;
  }
  constexpr std::int64_t most = 4096;
  const std::vector<float> factors = numbers_of(*found, 0, std::min(most, files::elements_of(found->tensor)));
  tensors.erase(found);
  return factors;
}

/// Makes the file's fingerprint cover all bytes before the first tensor, and what hash_tensor() takes of each tensor.
void hash_header_and_tensors(files::SteadyFile& file, const GgufContents& contents) {
  std::size_t header = file.size();
  for (const GgufTensor& tensor : contents.tensors) {
    const files::GgufBlock& block = files::block_of(tensor.type);
    const auto offset = static_cast<std::size_t>(tensor.offset);
    header = std::min(header, offset);
    hash_tensor(file, offset, static_cast<std::size_t>(files::elements_of(tensor)) / block.elements * block.bytes);
  }
  file.hash_also(0, header);
}

std::int64_t parts_in(const GgufContents& contents, const std::filesystem::path& path) {
  constexpr std::int64_t most = 99999;
  const std::int64_t parts = contents.integer("split.count", path.native()).value_or(0);
  if (parts < 0 || parts > most) {
    throw Error(ErrorCode::data,
                fmt::format("'{}': split.count is {}, expected at most {}", path.native(), parts, most));
  }
  return std::max<std::int64_t>(parts, 1);
}

}  // namespace

/// Opens the file and, if it is the first of several parts, the other parts. Returns the file of each tensor.
std::vector<const files::SteadyFile*> GgufModel::open_parts(const std::filesystem::path& path) {
  const auto refuse = [](const std::filesystem::path& part, const std::string& fault) {
    throw Error(ErrorCode::data, fmt::format("'{}': {}", part.native(), fault));
  };
  parts_.push_back(std::make_unique<files::SteadyFile>(path, hashed_of_weights));
  contents_ = files::parse_gguf(*parts_.front());
  hash_header_and_tensors(*parts_.front(), contents_);
  std::vector<const files::SteadyFile*> files(contents_.tensors.size(), parts_.front().get());
  const std::int64_t parts = parts_in(contents_, path);
  if (parts == 1) {
    return files;
  }
  const std::string name = path.filename().native();
  const std::int64_t number = contents_.integer("split.no", path.native()).value_or(0);
  if (number != 0 || !name.ends_with(part_ending(0, parts))) {
    refuse(path, fmt::format("it is part {} of {}: name the first, whose name ends in {}, beside the others",
                             number + 1, parts, part_ending(0, parts)));
  }
  const std::string stem = name.substr(0, name.size() - part_ending(0, parts).size());
  std::set<std::string, std::less<>> names;
  for (const GgufTensor& tensor : contents_.tensors) {
    names.insert(tensor.name);
  }
  for (std::int64_t part = 1; part < parts; ++part) {
    const std::filesystem::path other = path.parent_path() / (stem + part_ending(part, parts));
    parts_.push_back(std::make_unique<files::SteadyFile>(other, hashed_of_weights));
    GgufContents found = files::parse_gguf(*parts_.back());
    hash_header_and_tensors(*parts_.back(), found);
    if (parts_in(found, other) != parts || found.integer("split.no", other.native()).value_or(-1) != part) {
      refuse(other, fmt::format("it does not say that it is part {} of {}", part + 1, parts));
    }
    for (GgufTensor& tensor : found.tensors) {
      if (!names.insert(tensor.name).second) {
        refuse(other, fmt::format("the tensor '{}' is in another part, too", printable(shown(tensor.name))));
      }
      contents_.tensors.push_back(std::move(tensor));
      files.push_back(parts_.back().get());
    }
  }
  const std::int64_t all = contents_.integer("split.tensors.count", path.native()).value_or(-1);
  if (all >= 0 && all != static_cast<std::int64_t>(files.size())) {
    refuse(path, fmt::format("split.tensors.count = {}, and the parts have {} tensors", all, files.size()));
  }
  return files;
}

GgufModel::GgufModel(const std::filesystem::path& path) {
  const std::vector<const files::SteadyFile*> files = open_parts(path);
  const std::string architecture = architecture_of(contents_, path);
  const auto* const known = std::ranges::find(families, architecture, &Family::architecture);
  std::vector<Stored> tensors;
  for (std::size_t i = 0; i < files.size(); ++i) {
    tensors.push_back({.file = files[i], .tensor = contents_.tensors[i]});
  }
  if (known != std::end(families)) {
    Translation translation(contents_, *known, path);
    config_ = translation.config(take_factors(tensors));
    translation.place(tensors);
  } else {
    config_.push_back({SR_CONFIG_TEXT, "architectures.0", architecture});
    for (const auto& [key, value] : contents_.metadata) {
      if (key.starts_with(architecture + ".")) {
        add_value(key, value, config_);
      }
    }
  }
  source_.path = path;
  for (const std::unique_ptr<files::SteadyFile>& part : parts_) {
    source_.files.push_back(part->path());
  }
  for (const Stored& stored : tensors) {
    source_.tensors.push_back({stored.name_there, DType::f32, stored.shape_there});
  }
  source_.read = [reader = std::make_shared<GgufTensors>(std::move(tensors))](std::size_t tensor, std::int64_t first,
                                                                              std::span<std::byte> to) {
    reader->read(tensor, first, to);
  };
}

bool GgufModel::is_quantised() const {
  return std::ranges::any_of(contents_.tensors,
                             [](const files::GgufTensor& tensor) { return files::block_of(tensor.type).elements > 1; });
}

std::string GgufModel::fingerprint() const {
  std::string all;
  for (const std::unique_ptr<files::SteadyFile>& part : parts_) {
    all += (all.empty() ? "" : " ") + part->fingerprint();
  }
  return all;
}

}  // namespace shardrun::checkpoint
