#pragma once

/// An engine as a C++ class: the imperative way to write a program for several ranks.
///
///     class Linear : public shardrun::sdk::ShardedEngine {
///      public:
///       static constexpr const char* help = "one layer, data parallel";
///       static std::vector<shardrun::sdk::Option> options();      // may be left out
///       static constexpr std::uint32_t flags = SR_ENGINE_...;     // may be left out
///       explicit Linear(EngineSetup& setup)
///           : ShardedEngine(setup), w_(parameter("w", {features(), outputs()}, normal(0.1))) {}
///       void load_checkpoint(const Arrays& params) override { w_ = params.at("w"); }
///       Array forward(const Array& x) override;
///       Arrays backward(const Array& grads) override;
///
///      private:
///       Array& w_;
///     };
///     SHARDRUN_EXPORT_ENGINE(Linear, "linear", "1.0")
///
/// The constructor declares parameters and computes nothing. The host also runs it to learn the parameters of other
/// ranks; the parameters then have no elements. shardrun/engine.h has the rules. InvalidJob is for a job that has to
/// change; every other exception fails the job.

#include <shardrun/engine.h>
#include <shardrun/sdk/array.hpp>
#include <shardrun/sdk/plugin.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::sdk {

/// How a parameter begins: every element is `value`, or draws of mean 0 and that deviation.
struct FirstValues {
  double value = 0;
  bool is_deviation = false;
};
[[nodiscard]] inline FirstValues constant_values(double value) { return {value, false}; }
[[nodiscard]] inline FirstValues normal_values(double deviation) { return {deviation, true}; }
/// Draws of variance 2 / inputs, for weights of a layer with ReLU (He et al. 2015, section 2.2).
[[nodiscard]] inline FirstValues he_values(std::int64_t inputs) {
  return normal_values(std::sqrt(2.0 / static_cast<double>(inputs)));
}

namespace detail {

template <class T>
[[nodiscard]] constexpr std::uint32_t element_code() {
  return std::is_same_v<T, float> ? SR_ELEMENT_F32 : SR_ELEMENT_I32;
}

template <class T>
[[nodiscard]] sr_array raw_array(const BasicArray<T>& array) {
  return {sizeof(sr_array),
          element_code<T>(),
          array.shape().data(),
          const_cast<T*>(array.data()),
          static_cast<std::uint32_t>(array.shape().size()),
          0};
}

[[nodiscard]] inline Shape shape_of(const sr_array& array) { return Shape(array.shape, array.shape + array.rank); }

/// Stands for the elements.
template <class T>
[[nodiscard]] BasicArray<T> array_over(const sr_array& array) {
  if (array.element != element_code<T>()) {
    throw std::logic_error("an array of element type " + std::to_string(array.element) + ", expected " +
                           std::to_string(element_code<T>()));
  }
  return BasicArray<T>::over(static_cast<T*>(array.data), shape_of(array));
}

/// Receives a result.
template <class T>
class Maker {
 public:
  Maker() {
    raw_.struct_size = sizeof(raw_);
    raw_.self = this;
    raw_.make = [](void* self, const sr_array* like, void** data, sr_error* error) {
      return guarded(error, [&] {
        if (like->element != element_code<T>()) {
          throw std::invalid_argument(std::string("it is an array of ") +
                                      (like->element == SR_ELEMENT_F32 ? "f32" : "i32") + ", expected " +
                                      (element_code<T>() == SR_ELEMENT_F32 ? "f32" : "i32"));
        }
        BasicArray<T>& made = static_cast<Maker*>(self)->made_;
        made = BasicArray<T>(shape_of(*like));
        *data = made.data();
      });
    };
  }
  Maker(const Maker&) = delete;
  Maker& operator=(const Maker&) = delete;

  [[nodiscard]] const sr_array_maker* raw() const noexcept { return &raw_; }
  [[nodiscard]] BasicArray<T> take() { return std::move(made_); }

 private:
  sr_array_maker raw_{};
  BasicArray<T> made_;
};

}  // namespace detail

/// A message that has been started. Movable. Destroying it before wait() leaves the message to the end of the job.
class Future {
 public:
  Future(const sr_ranks* ranks, std::vector<std::uint64_t> messages) : ranks_(ranks), messages_(std::move(messages)) {}

  /// Whether wait() would return at once.
  [[nodiscard]] bool ready() {
    while (!messages_.empty()) {
      std::int32_t status = SR_OK;
      detail::call_host([&](sr_error* error) {
        status = ranks_->test(ranks_->self, messages_.back(), error);
        return status == SR_PENDING ? SR_OK : status;
      });
      if (status == SR_PENDING) {
        return false;
      }
      finish_last();
    }
    return true;
  }

  /// Returns once the sent array may change and the received one is there.
  void wait() {
    while (!messages_.empty()) {
      finish_last();
    }
  }

 private:
  void finish_last() {
    const std::uint64_t message = messages_.back();
    messages_.pop_back();
    detail::call_host([&](sr_error* error) { return ranks_->wait(ranks_->self, message, error); });
  }

  const sr_ranks* ranks_;
  std::vector<std::uint64_t> messages_;  ///< waited for from the back
};

/// What a constructor of an engine passes on to ShardedEngine.
struct EngineSetup {
  const sr_engine_job& job;
  const sr_parameter_writer* writer = nullptr;  ///< while parameters are declared
  const sr_named_array* parameters = nullptr;   ///< while the engine is made, with the next three
  std::uint32_t parameter_count = 0;
  std::uint32_t parameter_stride = 0;
  const sr_ranks* ranks = nullptr;
};

/// The base of an engine. All ranks call the collectives in one order.
class ShardedEngine {
 public:
  explicit ShardedEngine(EngineSetup& setup)
      : setup_(&setup),
        ranks_(setup.ranks),
        rank_(setup.job.rank),
        world_size_(setup.job.world_size),
        features_(setup.job.features),
        outputs_(setup.job.outputs),
        options_(setup.job.options, setup.job.option_count, setup.job.option_stride) {}
  ShardedEngine(const ShardedEngine&) = delete;
  ShardedEngine& operator=(const ShardedEngine&) = delete;
  virtual ~ShardedEngine() = default;

  /// Sets the parameters from the tensors of a checkpoint, each whole. `shard` and `slice` cut them.
  virtual void load_checkpoint(const Arrays& params) = 0;
  /// Predictions for a batch: x is [samples, features], the result [samples, outputs].
  virtual Array forward(const Array& x) = 0;
  /// The gradient of each parameter of this rank, by name. `grads`: of the loss with respect to the latest predictions.
  virtual Arrays backward(const Array& grads) = 0;

  /// The rank of this device.
  [[nodiscard]] int device_id() const noexcept { return static_cast<int>(rank_); }
  /// The number of ranks.
  [[nodiscard]] int num_devices() const noexcept { return static_cast<int>(world_size_); }

  /// Returns once every rank has called it.
  void barrier() {
    detail::call_host([&](sr_error* error) { return ranks_->barrier(ranks_->self, error); });
  }

  /// Sends an array to a rank. May return only when that rank receives it.
  template <class T>
  void send(const BasicArray<T>& src, int dst) {
    Future({ranks_, {start_send(src, dst)}}).wait();
  }

  /// The next array from a rank.
  template <class T = float>
  [[nodiscard]] BasicArray<T> receive(int src) {
    return made<T>([&](const sr_array_maker* maker, sr_error* error) {
      return ranks_->receive(ranks_->self, static_cast<std::uint32_t>(src), maker, error);
    });
  }

  /// Starts to send `src` to a rank. `src` stays unchanged until the future is waited for.
  template <class T>
  [[nodiscard]] Future send_async(const BasicArray<T>& src, int target_device_id) {
    return {ranks_, {start_send(src, target_device_id)}};
  }
  template <class T>
  Future send_async(const BasicArray<T>&& src, int target_device_id) = delete;  // it would be gone before it is sent

  /// As above, where every rank sends: `dst` gets what another rank sends here. That rank is as far behind this one as
  /// the target is ahead: 2 * device_id - target_device_id, modulo num_devices; or `source_device_id`.
  template <class T>
  [[nodiscard]] Future send_async(const BasicArray<T>& src, BasicArray<T>& dst, int target_device_id,
                                  std::optional<int> source_device_id = std::nullopt) {
    const int n = num_devices();
    const int source = source_device_id.value_or((((2 * device_id() - target_device_id) % n) + n) % n);
    const std::uint64_t sent = start_send(src, target_device_id);
    const sr_array to = detail::raw_array(dst);
    std::uint64_t received = 0;
    detail::call_host([&](sr_error* error) {
      return ranks_->start_receive(ranks_->self, static_cast<std::uint32_t>(source), &to, &received, error);
    });
    return {ranks_, {sent, received}};  // received first: a rank that waits to receive lets others send to it
  }

  /// The arrays of all ranks, joined along the axis.
  template <class T>
  [[nodiscard]] BasicArray<T> all_gather(const BasicArray<T>& arr, int axis = 0) {
    return made<T>([&, from = detail::raw_array(arr)](const sr_array_maker* maker, sr_error* error) {
      return ranks_->all_gather(ranks_->self, &from, static_cast<std::uint32_t>(axis), maker, error);
    });
  }

  /// The elementwise reduction of the arrays of all ranks. `op`: sum, product, min or max.
  template <class T>
  [[nodiscard]] BasicArray<T> all_reduce(const BasicArray<T>& arr, std::string_view op = "sum") {
    return made<T>([&, from = detail::raw_array(arr)](const sr_array_maker* maker, sr_error* error) {
      return ranks_->all_reduce(ranks_->self, &from, reduction(op), maker, error);
    });
  }

  /// This rank's part of the sum of the arrays of all ranks, cut along the axis.
  template <class T>
  [[nodiscard]] BasicArray<T> reduce_scatter(const BasicArray<T>& arr, int axis = 0, std::string_view op = "sum") {
    return made<T>([&, from = detail::raw_array(arr)](const sr_array_maker* maker, sr_error* error) {
      return ranks_->reduce_scatter(ranks_->self, &from, static_cast<std::uint32_t>(axis), reduction(op), maker, error);
    });
  }

  /// Cuts the array along the axis, sends part i to rank i, and joins what it receives along the axis.
  template <class T>
  [[nodiscard]] BasicArray<T> all_to_all(const BasicArray<T>& arr, int axis = 0) {
    return made<T>([&, from = detail::raw_array(arr)](const sr_array_maker* maker, sr_error* error) {
      return ranks_->all_to_all(ranks_->self, &from, static_cast<std::uint32_t>(axis), maker, error);
    });
  }

  /// The array of rank `root`. What other ranks pass does not count.
  template <class T>
  [[nodiscard]] BasicArray<T> broadcast(const BasicArray<T>& arr, int root = 0) {
    return made<T>([&, from = detail::raw_array(arr)](const sr_array_maker* maker, sr_error* error) {
      return ranks_->broadcast(ranks_->self, &from, static_cast<std::uint32_t>(root), maker, error);
    });
  }

  /// Writes the predictions for each input, in order, until there is no more. An engine may replace it: to read a few
  /// inputs ahead, for example.
  virtual void inference_loop(const std::function<std::optional<Array>()>& next_input,
                              const std::function<void(const Array&)>& write_output) {
    while (const std::optional<Array> x = next_input()) {
      write_output(forward(*x));
    }
  }

 protected:
  /// Declares a parameter that this rank holds whole. `decay`: weight decay applies.
  [[nodiscard]] Array& parameter(const std::string& name, const Shape& shape, FirstValues first = {},
                                 bool decay = true) {
    return declare(name, shape, Shape(shape.size(), 0), shape, first, decay);
  }
  /// Declares this rank's part of a parameter that is cut along the axis.
  [[nodiscard]] Array& sharded_parameter(const std::string& name, const Shape& whole, std::size_t axis,
                                         FirstValues first = {}, bool decay = true) {
    const Part part = part_of(whole.at(axis), num_devices(), device_id());
    Shape origin(whole.size(), 0);
    Shape shape = whole;
    origin[axis] = part.begin;
    shape[axis] = part.size;
    return declare(name, whole, origin, shape, first, decay);
  }

  /// This rank's part of an array that is cut along the axis.
  template <class T>
  [[nodiscard]] BasicArray<T> shard(const BasicArray<T>& whole, std::size_t axis) const {
    return whole.slice(axis, part_of(whole.extent(axis), num_devices(), device_id()));
  }

  /// Values in a sample, and those that forward returns for one. 0: not known.
  [[nodiscard]] std::int64_t features() const noexcept { return features_; }
  [[nodiscard]] std::int64_t outputs() const noexcept { return outputs_; }
  [[nodiscard]] const OptionValues& option_values() const noexcept { return options_; }

 private:
  template <class T, class Call>
  [[nodiscard]] static BasicArray<T> made(Call call) {
    detail::Maker<T> maker;
    detail::call_host([&](sr_error* error) { return call(maker.raw(), error); });
    return maker.take();
  }

  template <class T>
  [[nodiscard]] std::uint64_t start_send(const BasicArray<T>& src, int to) {
    const sr_array from = detail::raw_array(src);
    std::uint64_t message = 0;
    detail::call_host([&](sr_error* error) {
      return ranks_->start_send(ranks_->self, static_cast<std::uint32_t>(to), &from, &message, error);
    });
    return message;
  }

  /// 0 for an unknown one, which the host refuses.
  [[nodiscard]] static std::uint32_t reduction(std::string_view op) {
    constexpr std::string_view names[] = {"sum", "product", "min", "max"};
    const auto* const found = std::find(std::begin(names), std::end(names), op);
    if (found == std::end(names)) {
      throw std::invalid_argument("the op is '" + std::string(op) + "', expected sum, product, min or max");
    }
    return static_cast<std::uint32_t>(found - std::begin(names)) + SR_RANKS_SUM;
  }

  Array& declare(const std::string& name, const Shape& whole, const Shape& origin, const Shape& shape,
                 FirstValues first, bool decay) {
    float* data = nullptr;  // while parameters are declared
    if (setup_->writer != nullptr) {
      const sr_engine_parameter declared = {sizeof(sr_engine_parameter),
                                            decay ? 1U : 0U,
                                            name.c_str(),
                                            whole.data(),
                                            origin.data(),
                                            shape.data(),
                                            static_cast<std::uint32_t>(whole.size()),
                                            first.is_deviation ? 1U : 0U,
                                            first.value};
      detail::call_host(
          [&](sr_error* error) { return setup_->writer->add_parameter(setup_->writer->self, &declared, error); });
    }
    for_each(setup_->parameters, setup_->parameter_count, setup_->parameter_stride, [&](const sr_named_array& given) {
      if (given.name == name) {
        data = static_cast<float*>(given.array->data);
      }
    });
    return parameters_.emplace_back(Array::over(data, shape));
  }

  const EngineSetup* setup_;  ///< valid in constructors only
  const sr_ranks* ranks_;
  std::uint32_t rank_;
  std::uint32_t world_size_;
  std::int64_t features_;
  std::int64_t outputs_;
  OptionValues options_;
  std::list<Array> parameters_;
};

namespace detail {

/// The opened plugin. The engines of a class are made by the host's calls.
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
      *engine = static_cast<ShardedEngine*>(new Class(setup));
    });
  }

  static void destroy(void*, void* engine) noexcept { delete static_cast<ShardedEngine*>(engine); }

  static std::int32_t load_checkpoint(void*, void* engine, const sr_named_array* tensors, std::uint32_t count,
                                      std::uint32_t stride, sr_error* error) noexcept {
    return guarded(error, [&] {
      Arrays arrays;
      for_each(tensors, count, stride,
               [&](const sr_named_array& each) { arrays.emplace(each.name, array_over<float>(*each.array)); });
      static_cast<ShardedEngine*>(engine)->load_checkpoint(arrays);
    });
  }

  static std::int32_t forward(void*, void* engine, const sr_array* input, const sr_array_maker* output,
                              sr_error* error) noexcept {
    return guarded(error, [&] {
      const Array result = static_cast<ShardedEngine*>(engine)->forward(array_over<float>(*input));
      const sr_array raw = raw_array(result);
      void* data = nullptr;
      call_host([&](sr_error* of_host) { return output->make(output->self, &raw, &data, of_host); });
      std::copy(result.begin(), result.end(), static_cast<float*>(data));
    });
  }

  static std::int32_t infer(void*, void* engine, const sr_records* records, sr_error* error) noexcept {
    return guarded(error, [&] {
      static_cast<ShardedEngine*>(engine)->inference_loop(
          [&]() -> std::optional<Array> {
            Maker<float> maker;
            std::uint32_t found = 0;
            call_host([&](sr_error* of_host) { return records->next(records->self, maker.raw(), &found, of_host); });
            return found != 0 ? std::optional(maker.take()) : std::nullopt;
          },
          [&](const Array& predictions) {
            const sr_array raw = raw_array(predictions);
            call_host([&](sr_error* of_host) { return records->write(records->self, &raw, of_host); });
          });
    });
  }

  static std::int32_t backward(void*, void* engine, const sr_array* gradient, const sr_named_array* gradients,
                               std::uint32_t count, std::uint32_t stride, sr_error* error) noexcept {
    return guarded(error, [&] {
      Arrays made = static_cast<ShardedEngine*>(engine)->backward(array_over<float>(*gradient));
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
      made.load_checkpoint = load_checkpoint;
      made.forward = forward;
      made.backward = backward;
      made.infer = infer;
      return made;
    }();
    return engine;
  }
};

}  // namespace detail

}  // namespace shardrun::sdk

/// Exports `Class` as the plugin `plugin_name`. Use it once, at namespace scope. The file is shardrun_engine_NAME.so.
/// A fourth argument lists its names in other programs, separated by spaces, as in sr_manifest.
#define SHARDRUN_EXPORT_ENGINE(Class, plugin_name, plugin_version, ...)                                           \
  const sr_manifest shardrun_manifest_v1 = {sizeof(sr_manifest), SR_MAGIC,    SR_ABI_MAJOR,   SR_ABI_MINOR,  0,   \
                                            SR_KIND_ENGINE,      plugin_name, plugin_version, "" __VA_ARGS__};    \
  int32_t shardrun_open_v1(const sr_host* host, sr_error* error, sr_plugin** plugin) {                            \
    using Factory = shardrun::sdk::detail::EngineFactory<Class>;                                                  \
    return shardrun::sdk::detail::open_instance<Factory>(host, SR_KIND_ENGINE, &Factory::table(), error, plugin); \
  }
