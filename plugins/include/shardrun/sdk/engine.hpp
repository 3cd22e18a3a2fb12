#pragma once

/// An engine as a C++ class: the imperative way to write a program for several ranks.
///
///     class Linear : public shardrun::sdk::ShardedEngine {
///      public:
///       static constexpr const char* help = "one layer, data parallel";
///       static std::vector<shardrun::sdk::Option> options();      // may be left out
///       static constexpr std::uint32_t flags = SR_ENGINE_...;     // may be left out
///       explicit Linear(EngineSetup& setup)
///           : ShardedEngine(setup), w_(parameter("w", {features(), outputs()}, normal_values(0.1))) {}
///       void load_checkpoint(const Arrays& params) override { w_ = params.at("w"); }
///       Array forward(const Array& x) override;
///       Arrays backward(const Array& grads) override;
///
///      private:
///       Array& w_;
///     };
///     SHARDRUN_EXPORT_ENGINE(Linear, "linear", "1.0")
///
/// ShardedEngine takes samples of float. InferenceEngine<In, Out> takes any type and is not trained. IteratedEngine
/// only has steps. The constructor declares parameters and computes nothing. The host also runs it to learn the
/// parameters of other ranks; the data() of parameters is null then. shardrun/engine.h has the rules.
/// InvalidJob is for a job that has to change; every other exception fails the job as an error of the plugin.

#include <shardrun/engine.h>
#include <shardrun/sdk/engine/array_calls.hpp>
#include <shardrun/sdk/plugin.hpp>
#include <shardrun/sdk/engine/sharded_engine.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace shardrun::sdk {

namespace detail {

template <class Class>
concept Iterates = requires(Class& engine, std::int64_t number) {
  engine.step(number);
};

/// The opened plugin. The host's calls make engines of the class.
template <class Class>
struct EngineFactory {
  static std::vector<Option> options() {
    if constexpr (DeclaresOptions<Class>) {
      return Class::options();
    } else {
      return {};
    }
  }

  static std::int32_t declare(void*, const sr_engine_job* job, const sr_parameter_writer* writer,
                              sr_error* error) noexcept {
    return guarded(error, [&] {
      EngineSetup setup{.job = *job, .writer = writer};
      const Class declared(setup);
    });
  }

  static std::int32_t create(void*, const sr_engine_job* job, const sr_named_array* parameters, std::uint32_t count,
                             std::uint32_t stride, const sr_ranks* ranks, void** engine, sr_error* error) noexcept {
    return guarded(error, [&] {
      EngineSetup setup{
          .job = *job, .parameters = parameters, .parameter_count = count, .parameter_stride = stride, .ranks = ranks};
      *engine = new Class(setup);
    });
  }

  static void destroy(void*, void* engine) noexcept { delete static_cast<Class*>(engine); }

  static std::int32_t load_checkpoint(void*, void* engine, const sr_named_array* tensors, std::uint32_t count,
                                      std::uint32_t stride, sr_error* error) noexcept {
    return guarded(error, [&] {
      Arrays arrays;
      for_each(tensors, count, stride,
               [&](const sr_named_array& each) { arrays.emplace(each.name, array_over<float>(*each.array)); });
      of_records(engine).load_checkpoint(arrays);
    });
  }

  static std::int32_t forward(void*, void* engine, const sr_array* input, const sr_array_maker* output,
                              sr_error* error) noexcept {
    return guarded(error, [&] {
      const Array result = of_records(engine).forward(array_over<float>(*input));
      const sr_array raw = raw_array(result);
      void* data = nullptr;
      call_host([&](sr_error* of_host) { return output->make(output->self, &raw, &data, of_host); });
      std::copy(result.begin(), result.end(), static_cast<float*>(data));
    });
  }

  static std::int32_t infer(void*, void* engine, const sr_records* records, sr_error* error) noexcept {
    return guarded(error, [&] {
      using In = BasicArray<typename Class::Sample>;
      using Out = BasicArray<typename Class::Prediction>;
      of_records(engine).inference_loop(
          [&]() -> std::optional<In> {
            Maker<typename Class::Sample> maker;
            std::uint32_t found = 0;
            call_host([&](sr_error* of_host) { return records->next(records->self, maker.raw(), &found, of_host); });
            return found != 0 ? std::optional(maker.take()) : std::nullopt;
          },
          [&](const Out& predictions) {
            const sr_array raw = raw_array(predictions);
            call_host([&](sr_error* of_host) { return records->write(records->self, &raw, of_host); });
          });
    });
  }

  static std::int32_t backward(void*, void* engine, const sr_array* gradient, const sr_named_array* gradients,
                               std::uint32_t count, std::uint32_t stride, sr_error* error) noexcept {
    return guarded(error, [&] {
      Arrays made = static_cast<ShardedEngine&>(of_class(engine)).backward(array_over<float>(*gradient));
      for_each(gradients, count, stride, [&](const sr_named_array& each) {
        const auto found = made.find(each.name);
        if (found == made.end()) {
          throw std::invalid_argument(std::string("backward returned no gradient of '") + each.name + "'");
        }
        Array to = array_over<float>(*each.array);
        if (found->second.shape() != to.shape()) {
          throw std::invalid_argument(std::string("backward returned a gradient ") +
                                      sdk::to_string(found->second.shape()) + " of '" + each.name + "', which is " +
                                      sdk::to_string(to.shape()));
        }
        to = found->second;
        made.erase(found);
      });
      if (!made.empty()) {
        throw std::invalid_argument("backward returned a gradient of '" + made.begin()->first +
                                    "', which this rank has not declared");
      }
    });
  }

  static std::int32_t start(void*, void* engine, sr_error* error) noexcept {
    return guarded(error, [&] {
      if constexpr (requires(Class & each) { each.start(); }) {
        of_class(engine).start();
      }
    });
  }

  static std::int32_t step(void*, void* engine, std::int64_t step, sr_error* error) noexcept {
    return guarded(error, [&] {
      if constexpr (Iterates<Class>) {
        of_class(engine).step(step);
      }
    });
  }

  static Class& of_class(void* engine) { return *static_cast<Class*>(engine); }
  static auto& of_records(void* engine) {
    return static_cast<InferenceEngine<typename Class::Sample, typename Class::Prediction>&>(of_class(engine));
  }

  [[nodiscard]] static const sr_engine& table() {
    static const sr_engine engine = [] {
      sr_engine made{};
      made.struct_size = sizeof(made);
      if constexpr (requires { Class::flags; }) {
        made.flags = Class::flags;
      }
      made.help = Class::help;
      made.declare = declare;
      made.create = create;
      made.destroy = destroy;
      if constexpr (requires { typename Class::Sample; }) {
        made.load_checkpoint = load_checkpoint;
        made.infer = infer;
      }
      if constexpr (std::is_base_of_v<ShardedEngine, Class>) {
        made.forward = forward;
        made.backward = backward;
      }
      if constexpr (Iterates<Class>) {
        made.start = start;
        made.step = step;
      }
      return made;
    }();
    return engine;
  }
};

}  // namespace detail

}  // namespace shardrun::sdk

/// Exports `Class` as the plugin `plugin_name`. Use it once, at namespace scope. The file is shardrun_engine_NAME.so.
/// A fourth argument lists the plugin's names in other programs, separated by spaces, as in sr_manifest.
#define SHARDRUN_EXPORT_ENGINE(Class, plugin_name, plugin_version, ...)                                      \
  SHARDRUN_EXPORT_PLUGIN(shardrun::sdk::detail::EngineFactory<Class>, SR_KIND_ENGINE,                        \
                         &shardrun::sdk::detail::EngineFactory<Class>::table(), plugin_name, plugin_version, \
                         "" __VA_ARGS__)
