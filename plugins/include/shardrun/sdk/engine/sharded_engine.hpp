#pragma once

/// The base classes of engines. engine.hpp exports an engine as a plugin.

#include <shardrun/engine.h>
#include <shardrun/sdk/engine/array.hpp>
#include <shardrun/sdk/engine/array_calls.hpp>
#include <shardrun/sdk/plugin.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace shardrun::sdk {

/// The first values of a parameter: `value` everywhere, or random draws with mean 0 and the given deviation.
struct FirstValues {
  double value = 0;
  bool is_deviation = false;
};
[[nodiscard]] inline FirstValues constant_values(double value) { return {value, false}; }
[[nodiscard]] inline FirstValues normal_values(double deviation) { return {deviation, true}; }
/// Random draws with variance 2 / inputs, for the weights of a layer with ReLU (He et al. 2015, section 2.2).
[[nodiscard]] inline FirstValues he_values(std::int64_t inputs) {
  return normal_values(std::sqrt(2.0 / static_cast<double>(inputs)));
}

/// What the constructor of an engine passes to its base class.
struct EngineSetup {
  const sr_engine_job& job;
  const sr_parameter_writer* writer = nullptr;  ///< set while parameters are declared
  const sr_named_array* parameters = nullptr;   ///< set while the engine is made, like the next three
  std::uint32_t parameter_count = 0;
  std::uint32_t parameter_stride = 0;
  const sr_ranks* ranks = nullptr;
};

/// What all engines have in common: the rank's number, and communication. All ranks must call the collectives in the
/// same order.
class EngineRank {
 public:
  explicit EngineRank(EngineSetup& setup)
      : setup_(&setup),
        ranks_(setup.ranks),
        rank_(setup.job.rank),
        world_size_(setup.job.world_size),
        features_(setup.job.features),
        outputs_(setup.job.outputs),
        options_(setup.job.options, setup.job.option_count, setup.job.option_stride) {}
  EngineRank(const EngineRank&) = delete;
  EngineRank& operator=(const EngineRank&) = delete;
  virtual ~EngineRank() = default;

  /// The number of this rank, from 0.
  [[nodiscard]] int device_id() const noexcept { return static_cast<int>(rank_); }
  /// The number of ranks.
  [[nodiscard]] int num_devices() const noexcept { return static_cast<int>(world_size_); }

  /// Returns once every rank has called it.
  void barrier() {
    detail::call_host([&](sr_error* error) { return ranks_->barrier(ranks_->self, error); });
  }

  /// Sends an array to a rank. The call can wait until that rank has begun to receive the array.
  template <class T>
  void send(int dst, const BasicArray<T>& src) {
    Future(ranks_, {start_send(src, dst)}).wait();
  }

  /// Receives the next array from a rank.
  template <class T = float>
  [[nodiscard]] BasicArray<T> receive(int src) {
    return made<T>([&](const sr_array_maker* maker, sr_error* error) {
      return ranks_->receive(ranks_->self, static_cast<std::uint32_t>(src), maker, error);
    });
  }

  /// Starts to send `src` to a rank. `src` must not change until the future has been waited for.
  template <class T>
  [[nodiscard]] Future send_async(const BasicArray<T>& src, int target_device_id) {
    return {ranks_, {start_send(src, target_device_id)}};
  }
  /// Deleted: a temporary would be gone before it is sent.
  template <class T>
  Future send_async(const BasicArray<T>&& src, int target_device_id) = delete;

  /// As above, for a pattern in which every rank also receives: `dst` receives an array of its own shape from
  /// `source_device_id`. The default source is the rank as far behind this one as the target is ahead (2 * device_id -
  /// target_device_id, modulo num_devices). If target and source are both this rank, `dst` becomes a copy of `src`.
  template <class T>
  [[nodiscard]] Future send_async(const BasicArray<T>& src, BasicArray<T>& dst, int target_device_id,
                                  std::optional<int> source_device_id = std::nullopt) {
    const int n = num_devices();
    const int source = source_device_id.value_or((((2 * device_id() - target_device_id) % n) + n) % n);
    if (source == device_id() && target_device_id == source) {
      BasicArray<T>::over(dst.data(), dst.shape()) = src;
      return {ranks_, {}};
    }
    const std::uint64_t sent = start_send(src, target_device_id);
    const sr_array to = detail::raw_array(dst);
    std::uint64_t received = 0;
    detail::call_host([&](sr_error* error) {
      return ranks_->start_receive(ranks_->self, static_cast<std::uint32_t>(source), &to, &received, error);
    });
    // The future waits for the last message first, which is the one to receive, so that the sender is not held up.
    return {ranks_, {sent, received}};
  }

  /// Joins the arrays of all ranks along the axis.
  template <class T>
  [[nodiscard]] BasicArray<T> all_gather(const BasicArray<T>& arr, int axis = 0) {
    return made<T>([&, from = detail::raw_array(arr)](const sr_array_maker* maker, sr_error* error) {
      return ranks_->all_gather(ranks_->self, &from, static_cast<std::uint32_t>(axis), maker, error);
    });
  }

  /// Reduces the arrays of all ranks elementwise. `op`: sum, product, min or max.
  template <class T>
  [[nodiscard]] BasicArray<T> all_reduce(const BasicArray<T>& arr, std::string_view op = "sum") {
    return made<T>([&, from = detail::raw_array(arr)](const sr_array_maker* maker, sr_error* error) {
      return ranks_->all_reduce(ranks_->self, &from, reduction(op), maker, error);
    });
  }

  /// This rank's part, along the axis, of the reduction of all ranks' arrays.
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

  /// The array of rank `root`. What other ranks pass is ignored.
  template <class T>
  [[nodiscard]] BasicArray<T> broadcast(const BasicArray<T>& arr, int root = 0) {
    return made<T>([&, from = detail::raw_array(arr)](const sr_array_maker* maker, sr_error* error) {
      return ranks_->broadcast(ranks_->self, &from, static_cast<std::uint32_t>(root), maker, error);
    });
  }

 protected:
  /// Declares a parameter that this rank holds whole. `decay`: weight decay applies.
  [[nodiscard]] Array& parameter(const std::string& name, const Shape& shape, FirstValues first = {},
                                 bool decay = true) {
    return declare(name, shape, Shape(shape.size(), 0), shape, first, decay);
  }
  /// Declares this rank's part of a parameter that is cut along the axis. `whole`: the whole parameter's shape.
  [[nodiscard]] Array& sharded_parameter(const std::string& name, const Shape& whole, std::size_t axis,
                                         FirstValues first = {}, bool decay = true) {
    const Part part = part_of(whole.at(axis), num_devices(), device_id());
    Shape origin(whole.size(), 0);
    Shape shape = whole;
    origin[axis] = part.begin;
    shape[axis] = part.size;
    return declare(name, whole, origin, shape, first, decay);
  }

  /// Declares that a sample is an array of T of this shape, and a batch [samples, shape...]. -1 stands for any size.
  template <class T = float>
  void set_sample(const Shape& shape) {
    if (setup_->writer == nullptr) {
      return;
    }
    if (!SR_HAS(setup_->writer, sr_parameter_writer, set_sample)) {
      throw std::runtime_error(
          "this shardrun is older than engines that declare their samples: it takes f32 [features]");
    }
    const sr_array sample = {
        sizeof(sr_array), element_code<T>, shape.data(), nullptr, static_cast<std::uint32_t>(shape.size()), 0};
    detail::call_host(
        [&](sr_error* error) { return setup_->writer->set_sample(setup_->writer->self, &sample, error); });
  }

  /// This rank's part of an array that is cut along the axis.
  template <class T>
  [[nodiscard]] BasicArray<T> shard(const BasicArray<T>& whole, std::size_t axis) const {
    return whole.slice(axis, part_of(whole.extent(axis), num_devices(), device_id()));
  }

  /// The number of values in a sample, and the number that forward returns for a sample. 0: not known.
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

  /// The SR_RANKS_... of a reduction's name. Throws std::invalid_argument for an unknown name.
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
    float* data = nullptr;  // null while parameters are declared
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

/// The base of an engine that only predicts ([job] task = infer): values of type `Out` from samples of type `In`. The
/// derived class's constructor declares the shape of a sample by set_sample<In>(shape).
template <class In, class Out = float>
class InferenceEngine : public EngineRank {
 public:
  using EngineRank::EngineRank;
  using Sample = In;
  using Prediction = Out;

  /// Sets the parameters from the tensors of a checkpoint, each of which is whole. `shard` and `slice` cut them.
  virtual void load_checkpoint(const Arrays& params) = 0;
  /// Predictions for a batch. x is [samples, features], or as set_sample() declared; the result is [samples, outputs].
  /// In an engine that is not trained, the result is [samples, ...].
  virtual BasicArray<Out> forward(const BasicArray<In>& x) = 0;

  /// Writes the predictions for each input, in order, until there are no more inputs. An engine may override it, for
  /// example to read a few inputs ahead.
  virtual void inference_loop(const std::function<std::optional<BasicArray<In>>()>& next_input,
                              const std::function<void(const BasicArray<Out>&)>& write_output) {
    while (const std::optional<BasicArray<In>> x = next_input()) {
      write_output(forward(*x));
    }
  }
};

/// The base of an engine that can be trained and can infer.
class ShardedEngine : public InferenceEngine<float> {
 public:
  using InferenceEngine<float>::InferenceEngine;

  /// The gradient of each parameter of this rank, by name. `grads`: the gradient of the loss with respect to the latest
  /// result of forward.
  virtual Arrays backward(const Array& grads) = 0;
};

/// The base of an engine that only iterates ([job] task = iterate). A derived class declares its states in its
/// constructor, with state() and sharded_state(), and has
///     void start();                  // may be left out: sets the states to the values with which a run begins
///     void step(std::int64_t step);  // counted from 0; computes the next values of the states, in place
/// A step depends on the states alone, because a run can continue from saved states. An InferenceEngine or a
/// ShardedEngine with such a `step` can iterate, too.
class IteratedEngine : public EngineRank {
 public:
  using EngineRank::EngineRank;

 protected:
  /// Declares a state that this rank holds whole. Ranks that hold the same state must compute the same values for it.
  [[nodiscard]] Array& state(const std::string& name, const Shape& shape, FirstValues first = {}) {
    return parameter(name, shape, first, false);
  }
  /// Declares this rank's part of a state that is cut along the axis.
  [[nodiscard]] Array& sharded_state(const std::string& name, const Shape& whole, std::size_t axis,
                                     FirstValues first = {}) {
    return sharded_parameter(name, whole, axis, first, false);
  }
};

}  // namespace shardrun::sdk
