#pragma once

/// A model as a small C++ class that reads like its formulas:
///
///     class Wave {
///      public:
///       static constexpr const char* help = "a wave on a line";
///       static std::vector<shardrun::sdk::Option> options();  // may be left out
///       void declare(const ModelJob& job, States& states) const;
///       void iterate(const ModelJob& job, Function& f) const;
///     };
///     SHARDRUN_EXPORT_MODEL(Wave, "wave", "1.0")
///
/// A class has `loss` or `iterate`, or both, and any of the other functions:
///
///     Value loss(const ModelJob& job, Function& f) const;    // trained; the class says which kinds of data it takes:
///                                                            // static constexpr std::uint32_t data = SR_DATA_TOKENS;
///     Loss loss(const ModelJob& job, Function& f) const;     // the same, with a denominator of its own
///     void iterate(const ModelJob& job, Function& f) const;  // iterated
///     void predict(const ModelJob& job, Function& f) const;  // sampled, token by token
///     Value forward(const ModelJob& job, Function& f) const; // applied to arrays: the outputs of `inputs`
///     Value decode(const ModelJob& job, Function& f) const;  // sampled with caches: the logits (model/decoding.hpp)
///
/// A class may bring ops of its own: `static auto ops() { return own_ops<Swish, Other>(); }` (model/op.hpp).
///
/// A model that Hugging Face's libraries have, too, says how their folders describe it (model/hub.hpp):
///
///     static constexpr const char* architectures = "WaveForCausalLM";
///     void read_config(const HubConfig& config) const;
///     void write_config(const ModelJob& job, ConfigOutput& config) const;
///     void name_tensors(const ModelJob& job, TensorNames& names) const;
///
/// shardrun/model.h says what each function has to write. All are pure and deterministic. They throw InvalidJob if the
/// job has to change; other exceptions fail the job as errors of the plugin. The ops are in model/math.hpp.

#include <shardrun/model.h>
#include <shardrun/sdk/model/decoding.hpp>
#include <shardrun/sdk/model/function.hpp>
#include <shardrun/sdk/model/hub.hpp>
#include <shardrun/sdk/model/math.hpp>
#include <shardrun/sdk/model/op.hpp>
#include <shardrun/sdk/plugin.hpp>

#include <concepts>
#include <cstdint>
#include <string>
#include <vector>

namespace shardrun::sdk {

struct ModelJob {
  OptionValues options;
  std::uint32_t data = 0;     ///< SR_DATA_...; 0: no data, because the job does not train, or is only planned
  std::int64_t vocab = 0;     ///< set by the data, like the next two; 0: not known
  std::int64_t features = 0;  ///< values in a row of `inputs`
  std::int64_t outputs = 0;   ///< values in a row of `targets`
  CacheSizes caches = {};     ///< of the function `decode`
};

/// The losses of samples, [batch] or [batch, ...], and the counts by whose sum they are divided. The loss of a step is
/// the sum of the whole batch's losses divided by the sum of its counts, for any microbatches and ranks. A batch whose
/// counts are all 0 has loss 0 and no gradient. Counts get no gradient.
struct Loss {
  Value sums;
  Value counts;  ///< f32 of any shape
};

/// The first values of a state.
struct Initial {
  std::uint32_t kind = SR_INITIAL_CONSTANT;
  double value = 0;
};

[[nodiscard]] inline Initial constant(double value) { return {SR_INITIAL_CONSTANT, value}; }
[[nodiscard]] inline Initial normal(double deviation) { return {SR_INITIAL_NORMAL, deviation}; }
/// A Gaussian bump in the middle; its width is `share` of each dimension.
[[nodiscard]] inline Initial bump(double share) { return {SR_INITIAL_BUMP, share}; }
/// Random draws from [0, limit).
[[nodiscard]] inline Initial uniform(double limit) { return {SR_INITIAL_UNIFORM, limit}; }
/// 1 with this probability, else 0.
[[nodiscard]] inline Initial chance(double probability) { return {SR_INITIAL_CHANCE, probability}; }
/// 1, 2, 3, … times `step`, in row-major order.
[[nodiscard]] inline Initial counting(double step = 1) { return {SR_INITIAL_COUNTING, step}; }

/// Declares the states of a model. All states are float32.
class States {
 public:
  explicit States(const sr_state_writer& writer) : writer_(writer) {}

  /// A tensor that is trained. `decay`: weight decay applies. `layer`: the repeated layer to which it belongs.
  void parameter(const std::string& name, const Dims& dims, Initial initial, bool decay = false,
                 std::int32_t layer = -1) {
    add(SR_TENSOR_PARAMETER, name, dims, initial, decay, layer);
  }

  /// A tensor that is kept from step to step and that functions write.
  void field(const std::string& name, const Dims& dims, Initial initial = {}) {
    add(SR_TENSOR_STATE, name, dims, initial, false, -1);
  }

  /// A cache of the function `decode`: keys or values of past tokens.
  void cache(const std::string& name, const CacheSizes& sizes, const Dim& heads, const Dim& head_dim,
             std::int32_t layer) {
    add(SR_TENSOR_CACHE, name, {{"pages", sizes.pages}, heads, {"page", sizes.page}, head_dim}, {}, false, layer);
  }

  /// Sets the number of repeated layers, which a pipeline divides.
  void set_layers(std::int64_t layers) {
    detail::call_host(
        [&](sr_error* error) { return writer_.set_layers(writer_.self, static_cast<std::uint32_t>(layers), error); });
  }

 private:
  void add(std::uint32_t kind, const std::string& name, const Dims& dims, Initial initial, bool decay,
           std::int32_t layer) {
    const detail::RawType type(SR_ELEMENT_F32, dims);
    const sr_state state = {sizeof(sr_state), kind,          name.c_str(), &type.raw, initial.kind,
                            decay ? 1U : 0U,  initial.value, layer,        0};
    detail::call_host([&](sr_error* error) { return writer_.add_state(writer_.self, &state, error); });
  }

  const sr_state_writer& writer_;
};

namespace detail {

template <class Class>
concept HasCounts = requires(const Class& model, const ModelJob& job, Function& f) {
  { model.loss(job, f) } -> std::same_as<Loss>;
};
template <class Class>
concept IsTrained = HasCounts<Class> || requires(const Class& model, const ModelJob& job, Function& f) {
  { model.loss(job, f) } -> std::convertible_to<Value>;
};
template <class Class>
concept IsIterated = requires(const Class& model, const ModelJob& job, Function& f) {
  model.iterate(job, f);
};
template <class Class>
concept IsSampled = requires(const Class& model, const ModelJob& job, Function& f) {
  model.predict(job, f);
};

template <class Class>
concept IsApplied = requires(const Class& model, const ModelJob& job, Function& f) {
  { model.forward(job, f) } -> std::convertible_to<Value>;
};

template <class Class>
concept IsDecoded = requires(const Class& model, const ModelJob& job, Function& f) {
  { model.decode(job, f) } -> std::convertible_to<Value>;
};

[[nodiscard]] inline ModelJob read_model_job(const sr_model_job& raw) {
  ModelJob job = {OptionValues(raw.options, raw.option_count, raw.option_stride), raw.data, raw.vocab, raw.features,
                  raw.outputs};
  if (raw.struct_size > SR_MODEL_JOB_SIZE_1_7) {
    job.caches = {raw.cache_pages, raw.page_tokens, raw.sequence_pages};
  }
  return job;
}

/// A function of a class, and the code that writes it.
template <class Class>
struct ModelFunction {
  sr_function declared;
  void (*write)(const Class& model, const ModelJob& job, Function& f);
};

template <class Class>
[[nodiscard]] std::vector<ModelFunction<Class>> make_model_functions() {
  std::vector<ModelFunction<Class>> functions;
  if constexpr (IsTrained<Class>) {
    functions.push_back(
        {{sizeof(sr_function), SR_FUNCTION_REPEATED, "loss"}, [](const Class& model, const ModelJob& job, Function& f) {
           if constexpr (HasCounts<Class>) {
             const Loss loss = model.loss(job, f);
             f.set_losses(loss.sums);
             f.set_loss_counts(loss.counts);
           } else {
             f.set_losses(model.loss(job, f));
           }
         }});
  }
  if constexpr (IsIterated<Class>) {
    functions.push_back({{sizeof(sr_function), SR_FUNCTION_ONCE, "iterate"},
                         [](const Class& model, const ModelJob& job, Function& f) { model.iterate(job, f); }});
  }
  if constexpr (IsSampled<Class>) {
    functions.push_back({{sizeof(sr_function), SR_FUNCTION_ON_DEMAND, "predict"},
                         [](const Class& model, const ModelJob& job, Function& f) { model.predict(job, f); }});
  }
  if constexpr (IsApplied<Class>) {
    functions.push_back(
        {{sizeof(sr_function), SR_FUNCTION_ON_DEMAND, "forward"},
         [](const Class& model, const ModelJob& job, Function& f) { f.output("outputs", model.forward(job, f)); }});
  }
  if constexpr (IsDecoded<Class>) {
    functions.push_back(
        {{sizeof(sr_function), SR_FUNCTION_ON_DEMAND, "decode"},
         [](const Class& model, const ModelJob& job, Function& f) { f.output("logits", model.decode(job, f)); }});
  }
  return functions;
}

/// The table of functions for a class.
template <class Class>
struct ModelTable {
  static_assert(IsTrained<Class> || IsIterated<Class>, "a model has a const function loss or iterate");

  static std::int32_t declare(void* self, const sr_model_job* job, const sr_state_writer* writer,
                              sr_error* error) noexcept {
    return guarded(error, [&] {
      States states(*writer);
      Instance<Class>::object(self).declare(read_model_job(*job), states);
    });
  }

  static std::int32_t write_function(void* self, const sr_model_job* job, const sr_function_request* request,
                                     const sr_function_writer* writer, sr_error* error) noexcept {
    return guarded(error, [&] {
      const bool has_length = request->struct_size > SR_FUNCTION_REQUEST_SIZE_1_7;
      Function function(*writer, request->rows, request->training != 0, has_length ? request->length : 0);
      functions()[request->function].write(Instance<Class>::object(self), read_model_job(*job), function);
    });
  }

  static std::int32_t read_config(void* self, const sr_config_value* values, std::uint32_t count, std::uint32_t stride,
                                  const sr_config_reader* reader, sr_error* error) noexcept {
    return guarded(error,
                   [&] { Instance<Class>::object(self).read_config(HubConfig(values, count, stride, *reader)); });
  }

  static std::int32_t write_config(void* self, const sr_model_job* job, const sr_config_writer* writer,
                                   sr_error* error) noexcept {
    return guarded(error, [&] {
      ConfigOutput config(*writer);
      Instance<Class>::object(self).write_config(read_model_job(*job), config);
    });
  }

  static std::int32_t name_tensors(void* self, const sr_model_job* job, const sr_tensor_namer* namer,
                                   sr_error* error) noexcept {
    return guarded(error, [&] {
      TensorNames names(*namer);
      Instance<Class>::object(self).name_tensors(read_model_job(*job), names);
    });
  }

  [[nodiscard]] static const std::vector<ModelFunction<Class>>& functions() {
    static const std::vector<ModelFunction<Class>> all = make_model_functions<Class>();
    return all;
  }

  [[nodiscard]] static const sr_model& table() {
    static const sr_model model = [] {
      sr_model made{};
      made.struct_size = sizeof(made);
      if constexpr (requires { Class::data; }) {
        made.data = Class::data;
      }
      made.help = Class::help;
      made.functions = &functions().data()->declared;
      made.function_count = static_cast<std::uint32_t>(functions().size());
      made.function_stride = sizeof(ModelFunction<Class>);
      made.declare = declare;
      made.write_function = write_function;
      if constexpr (requires { Class::ops(); }) {
        static const auto ops = Class::ops();
        made.ops = ops.data();
        made.op_count = static_cast<std::uint32_t>(ops.size());
        made.op_stride = sizeof(sr_model_op);
      }
      if constexpr (requires { Class::architectures; }) {
        made.architectures = Class::architectures;
        made.read_config = read_config;
        made.write_config = write_config;
        made.name_tensors = name_tensors;
      }
      return made;
    }();
    return model;
  }
};

}  // namespace detail

}  // namespace shardrun::sdk

/// Exports `Class` as the plugin `plugin_name`. Use it once, at namespace scope. The file is shardrun_model_NAME.so.
/// A fourth argument lists the plugin's names in other programs, separated by spaces, as in sr_manifest.
#define SHARDRUN_EXPORT_MODEL(Class, plugin_name, plugin_version, ...)                                          \
  SHARDRUN_EXPORT_PLUGIN(Class, SR_KIND_MODEL, &shardrun::sdk::detail::ModelTable<Class>::table(), plugin_name, \
                         plugin_version, "" __VA_ARGS__)
