#pragma once

/// Models in the folders of Hugging Face's libraries: config.json, and the names of tensors.

#include <shardrun/model.h>
#include <shardrun/sdk/plugin.hpp>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::sdk {

/// The C++ form of sr_config_value.
struct ConfigValue {
  std::uint32_t type = SR_CONFIG_NULL;  ///< SR_CONFIG_...
  std::string key;
  std::string text;

  bool operator==(const ConfigValue&) const = default;
};

/// The C++ form of sr_part.
struct TensorPart {
  std::uint32_t dim = 0;
  std::int64_t first = 0;
  std::int64_t size = 0;  ///< 0: all

  bool operator==(const TensorPart&) const = default;
};

/// The C++ form of sr_tensor_name.
struct TensorName {
  std::string state;  ///< empty: tensors of this name are left out
  std::string name;
  std::vector<std::int64_t> shape = {};
  bool transposed = false;
  TensorPart part = {};
  TensorPart state_part = {};

  bool operator==(const TensorName&) const = default;
};

namespace detail {

[[nodiscard]] inline ConfigValue read(const sr_config_value& raw) {
  return {raw.type, raw.key != nullptr ? raw.key : "", raw.text != nullptr ? raw.text : ""};
}

/// The C form. It points into `value`.
[[nodiscard]] inline sr_config_value write(const ConfigValue& value) noexcept {
  return {sizeof(sr_config_value), value.type, value.key.c_str(), value.text.c_str()};
}

[[nodiscard]] inline TensorPart read(const sr_part& raw) noexcept { return {raw.dim, raw.first, raw.size}; }
[[nodiscard]] inline sr_part write(const TensorPart& part) noexcept {
  return {sizeof(sr_part), part.dim, part.first, part.size};
}

[[nodiscard]] inline TensorName read(const sr_tensor_name& raw) {
  TensorName name{.state = raw.state != nullptr ? raw.state : "",
                  .name = raw.name != nullptr ? raw.name : "",
                  .transposed = (raw.flags & SR_NAME_TRANSPOSED) != 0,
                  .part = read(raw.part),
                  .state_part = read(raw.state_part)};
  if (raw.shape != nullptr) {
    name.shape.assign(raw.shape, raw.shape + raw.rank);
  }
  return name;
}

/// The C form. It points into `name`.
[[nodiscard]] inline sr_tensor_name write(const TensorName& name) noexcept {
  return {sizeof(sr_tensor_name),
          name.transposed ? SR_NAME_TRANSPOSED : 0U,
          name.state.empty() ? nullptr : name.state.c_str(),
          name.name.c_str(),
          name.shape.data(),
          static_cast<std::uint32_t>(name.shape.size()),
          0,
          write(name.part),
          write(name.state_part)};
}

}  // namespace detail

/// The config.json of a model that others made. Keys that a model asks for, or ignores, count as known; the host
/// refuses the others by name.
class HubConfig {
 public:
  HubConfig(const sr_config_value* values, std::uint32_t count, std::uint32_t stride, const sr_config_reader& reader)
      : reader_(reader) {
    for_each(values, count, stride, [&](const sr_config_value& value) { values_.push_back(detail::read(value)); });
  }

  /// Whether the key has a value other than null.
  [[nodiscard]] bool has(std::string_view key) const {
    const ConfigValue* const value = find(key);
    return value != nullptr && value->type != SR_CONFIG_NULL;
  }

  // The following throw InvalidJob if the key has another type, or is missing and there is no `otherwise`.

  [[nodiscard]] std::string text(std::string_view key) const { return at(key, SR_CONFIG_TEXT, "a string").text; }
  [[nodiscard]] bool boolean(std::string_view key) const {
    return at(key, SR_CONFIG_BOOLEAN, "true or false").text == "true";
  }
  [[nodiscard]] std::int64_t integer(std::string_view key) const {
    return number_as<std::int64_t>(at(key, SR_CONFIG_NUMBER, "a whole number"), "a whole number");
  }
  [[nodiscard]] double number(std::string_view key) const {
    return number_as<double>(at(key, SR_CONFIG_NUMBER, "a number"), "a number");
  }
  [[nodiscard]] std::string text(std::string_view key, const std::string& otherwise) const {
    return has(key) ? text(key) : otherwise;
  }
  [[nodiscard]] bool boolean(std::string_view key, bool otherwise) const { return has(key) ? boolean(key) : otherwise; }
  [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t otherwise) const {
    return has(key) ? integer(key) : otherwise;
  }
  [[nodiscard]] double number(std::string_view key, double otherwise) const {
    return has(key) ? number(key) : otherwise;
  }

  /// Throws InvalidJob unless the key is missing, is null, or has this value: any other value would mean another model.
  void require(std::string_view key, std::string_view text) const {
    if (has(key) && find(key)->text != text) {
      throw InvalidJob("config.json: " + std::string(key) + " = " + find(key)->text + ": only " + std::string(text) +
                       " is supported");
    }
  }

  /// Marks keys that change nothing as known. A key that ends in `*` stands for all keys with that beginning.
  void ignore(std::initializer_list<std::string_view> keys) const {
    for (const ConfigValue& value : values_) {
      for (const std::string_view key : keys) {
        const bool is_stem = key.ends_with('*');
        if (is_stem ? value.key.starts_with(key.substr(0, key.size() - 1)) : value.key == key) {
          know(value.key);
        }
      }
    }
  }

  /// Marks the keys of Hugging Face's libraries that change nothing in what any model computes: versions, the tokens
  /// that start and end generation, and settings for the libraries' own code.
  void ignore_usual() const {
    ignore({"_name_or_path",
            "_model_name_or_path",
            "_commit_hash",
            "architectures.*",
            "model_type",
            "transformers_version",
            "torch_dtype",
            "dtype",
            "use_cache",
            "bos_token_id*",
            "eos_token_id*",
            "pad_token_id*",
            "unk_token_id",
            "sep_token_id",
            "tokenizer_class",
            "initializer_range",
            "is_decoder",
            "is_encoder_decoder",
            "return_dict",
            "output_attentions",
            "output_hidden_states",
            "auto_map.*",
            "task_specific_params.*",
            "_attn_implementation*",
            "id2label.*",
            "label2id.*",
            "problem_type",
            "chunk_size_feed_forward",
            "add_cross_attention",
            "cross_attention_hidden_size",
            "tie_encoder_decoder",
            "_flash_attn_2_enabled",
            "attn_implementation",
            "max_length",
            "min_length",
            "do_sample",
            "temperature",
            "top_k",
            "top_p",
            "repetition_penalty",
            "num_beams",
            "transformers.js_config*"});
  }

  /// Sets an option of the model.
  void set(const std::string& option, const std::string& value) const {
    detail::call_host(
        [&](sr_error* error) { return reader_.set_option(reader_.self, option.c_str(), value.c_str(), error); });
  }
  void set(const std::string& option, const char* value) const { set(option, std::string(value)); }
  void set(const std::string& option, bool value) const { set(option, value ? "true" : "false"); }
  void set(const std::string& option, std::int64_t value) const { set(option, std::to_string(value)); }
  void set(const std::string& option, double value) const { set(option, digits(value)); }

  /// The shortest text that converts back to this number.
  [[nodiscard]] static std::string digits(double value) {
    char text[64] = {};
    const std::to_chars_result end = std::to_chars(text, text + sizeof(text), value);
    std::string all(text, end.ptr);
    return all.find_first_not_of("-0123456789") == std::string::npos ? all + ".0" : all;  // a real number's form
  }

 private:
  [[nodiscard]] const ConfigValue* find(std::string_view key) const {
    for (const ConfigValue& value : values_) {
      if (value.key == key) {
        know(value.key);
        return &value;
      }
    }
    return nullptr;
  }

  void know(const std::string& key) const {
    detail::call_host([&](sr_error* error) { return reader_.know(reader_.self, key.c_str(), error); });
  }

  [[nodiscard]] const ConfigValue& at(std::string_view key, std::uint32_t type, const char* expected) const {
    const ConfigValue* const value = find(key);
    if (value == nullptr || value->type == SR_CONFIG_NULL) {
      throw InvalidJob("config.json has no " + std::string(key) + ", expected " + expected);
    }
    if (value->type != type) {
      throw InvalidJob("config.json: " + std::string(key) + " = " + value->text + ", expected " + expected);
    }
    return *value;
  }

  template <class Number>
  [[nodiscard]] static Number number_as(const ConfigValue& value, const char* expected) {
    Number number{};
    const char* const end = value.text.data() + value.text.size();
    const std::from_chars_result read = std::from_chars(value.text.data(), end, number);
    if (read.ec != std::errc() || read.ptr != end) {
      throw InvalidJob("config.json: " + value.key + " = " + value.text + ", expected " + expected);
    }
    return number;
  }

  std::vector<ConfigValue> values_;
  const sr_config_reader& reader_;
};

/// Writes a config.json.
class ConfigOutput {
 public:
  explicit ConfigOutput(const sr_config_writer& writer) : writer_(writer) {}

  void text(const std::string& key, const std::string& value) const { add({SR_CONFIG_TEXT, key, value}); }
  void boolean(const std::string& key, bool value) const { add({SR_CONFIG_BOOLEAN, key, value ? "true" : "false"}); }
  void integer(const std::string& key, std::int64_t value) const {
    add({SR_CONFIG_NUMBER, key, std::to_string(value)});
  }
  void number(const std::string& key, double value) const { add({SR_CONFIG_NUMBER, key, HubConfig::digits(value)}); }

 private:
  void add(const ConfigValue& value) const {
    const sr_config_value raw = detail::write(value);
    detail::call_host([&](sr_error* error) { return writer_.add(writer_.self, &raw, error); });
  }

  const sr_config_writer& writer_;
};

/// Lists the names that the parameters have in folders of Hugging Face's libraries.
class TensorNames {
 public:
  explicit TensorNames(const sr_tensor_namer& namer) : namer_(namer) {}

  void add(const TensorName& name) const {
    const sr_tensor_name raw = detail::write(name);
    detail::call_host([&](sr_error* error) { return namer_.add(namer_.self, &raw, error); });
  }
  /// Names a whole state, whose elements have the same order in the folder's tensor.
  void add(const std::string& state, const std::string& name, std::vector<std::int64_t> shape) const {
    add(TensorName{.state = state, .name = name, .shape = std::move(shape)});
  }
  /// Names tensors that folders can contain and that the model does not need. `*` stands for any characters.
  void leave_out(const std::string& name) const { add(TensorName{.state = "", .name = name}); }

 private:
  const sr_tensor_namer& namer_;
};

}  // namespace shardrun::sdk
