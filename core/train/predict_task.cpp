#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/checkpoint/given_weights.h"
#include "core/data/feed.h"
#include "core/device/host_tensor.h"
#include "core/train/stream_task.h"

namespace shardrun::train {
namespace {

/// Applies a model to an array or a stream of arrays, a batch at a time. The first rank writes the predictions of all.
class PredictTask : private StreamTask {
 public:
  using StreamTask::StreamTask;

  metrics::Summary run(metrics::Summary& failed) {
    runtime::Executor executor(compiled_.programs, *compiled_.device);
    prepare(executor);
    return guarded(executor, failed, [&] {
      now_at("loading weights", 0, "loading weights");
      if (std::ranges::find(compiled_.graph.states, graph::StateKind::field, &graph::State::kind) !=
          compiled_.graph.states.end()) {
        runtime::initialize(compiled_.graph, job_.seed, executor);  // the other states are loaded
      }
      checkpoint::load_parameters(compiled_.weights->source(), compiled_.graph, executor);
      open_streams(compiled_.dataset == nullptr ? std::optional(input_type().dtype) : std::nullopt);
      settings_.link.barrier();
      const StepsUnderWay from_here_on;
      record_.now_at(metrics::first_step_activity);
      if (record_.is_first()) {
        predictions_->open_file();
      }
      writing([&] { compiled_.dataset != nullptr ? predict_array(executor) : predict_records(executor); });
      return signal_;
    });
  }

 private:
  void predict_array(runtime::Executor& executor) {
    const std::int64_t samples = compiled_.dataset->evaluation_samples();
    const std::vector<std::size_t> programs =
        executor.find_calls(workload::forward_function, compiled_.evaluation_rows);
    if (record_.is_first()) {
      predictions_->begin(graph::DType::f32, shape_of_outputs(samples), true);
    }
    await_writing();
    for (auto program = programs.begin(); program != programs.end() && signal_ == 0; ++program) {
      predict_batch(executor, *program, [&](std::int64_t row, const device::TensorView& rows) {
        compiled_.dataset->fill_evaluation(done_ + row, rows, {});
      });
      tell_progress("predicting sample", done_, samples);
    }
  }

  void predict_records(runtime::Executor& executor) {
    while (const std::optional<std::int64_t> rows = next_record()) {
      if (record_.is_first()) {
        std::vector<std::int64_t> shape = shape_of_outputs(*rows);
        if (is_sample(record())) {
          shape.erase(shape.begin());
        }
        predictions_->begin(graph::DType::f32, shape, false);
      }
      std::int64_t done = 0;
      while (done < *rows && signal_ == 0) {
        const std::int64_t now =
            *std::ranges::find_if(compiled_.evaluation_rows, [&](std::int64_t count) { return count <= *rows - done; });
        predict_rows(executor, done, now);
        done += now;
      }
      if (done == *rows) {
        count_record();
      }
      tell_progress("predicting sample", done_, 0);
    }
  }

  /// The number of values in a sample.
  [[nodiscard]] std::int64_t width() const { return graph::element_count(input_type()) / input_type().shape[0]; }

  [[nodiscard]] const graph::TensorType& input_type() const {
    const graph::Function& function = compiled_.graph.functions.front();
    return function.values[function.inputs.front().value].type;
  }

  [[nodiscard]] std::vector<std::int64_t> shape_of_outputs(std::int64_t samples) const {
    const graph::Function& function = compiled_.graph.functions.front();
    std::vector<std::int64_t> shape = function.values[function.outputs.front().value].type.shape;
    shape.front() = samples;
    return shape;
  }

  /// Whether a record is a single sample. A record with more than one dimension is several samples if each of its rows
  /// has as many values as a sample.
  [[nodiscard]] bool is_sample(const data::NpyRecord& record) const {
    return values_in(record.shape, 0) == width() && !(record.shape.size() > 1 && values_in(record.shape, 1) == width());
  }

  /// The number of values in the dimensions from `first` on; -1 if it is too large to be counted.
  [[nodiscard]] static std::int64_t values_in(const std::vector<std::int64_t>& shape, std::size_t first) {
    std::int64_t count = 1;
    for (std::size_t d = first; d < shape.size(); ++d) {
      if (__builtin_mul_overflow(count, shape[d], &count)) {
        return -1;
      }
    }
    return count;
  }

  [[nodiscard]] std::int64_t samples_of(const data::NpyRecord& record) const override {
    const bool is_one = is_sample(record);
    if (!is_one && (record.shape.empty() || values_in(record.shape, 1) != width())) {
      throw wrong_shape(record, {width()});
    }
    if (input_type().dtype == graph::DType::i32) {
      require_tokens(record);
    }
    return is_one ? 1 : record.shape.front();
  }

  void require_tokens(const data::NpyRecord& record) const {
    const std::int64_t last = vocabulary() > 0 ? vocabulary() - 1 : std::numeric_limits<std::int32_t>::max();
    for (std::size_t at = 0; at < record.bytes.size(); at += sizeof(std::int32_t)) {
      std::int32_t token = 0;
      std::memcpy(&token, record.bytes.data() + at, sizeof(token));
      if (token < 0 || token > last) {
        throw Error(ErrorCode::data, fmt::format("record {}: it has the token {}, and the model has tokens 0 to {}",
                                                 record.number, token, last));
      }
    }
  }

  [[nodiscard]] std::int64_t vocabulary() const {
    const OptionValues& options = job_.model.options;
    return options.has("vocab") ? options.integer("vocab") : compiled_.settings.data.vocab;
  }

  /// Predicts rows of a record from `first` on. The first rank gives them to the others.
  void predict_rows(runtime::Executor& executor, std::int64_t first, std::int64_t rows) {
    const auto row_bytes = width() * static_cast<std::int64_t>(graph::element_bytes(input_type().dtype));
    if (record_.is_first()) {
      const auto from = record().bytes.begin() + first * row_bytes;
      rows_.assign(from, from + rows * row_bytes);
    }
    rows_.resize(static_cast<std::size_t>(rows * row_bytes));
    settings_.link.broadcast(rows_);
    const std::size_t program = executor.find_calls(workload::forward_function, {rows}).front();
    predict_batch(executor, program, [&](std::int64_t row, const device::TensorView& to) {
      const std::span<std::byte> bytes = to.dtype == graph::DType::i32
                                             ? std::as_writable_bytes(device::elements_of<std::int32_t>(to))
                                             : std::as_writable_bytes(device::elements_of<float>(to));
      std::ranges::copy(std::span(rows_).subspan(static_cast<std::size_t>(row * row_bytes), bytes.size()),
                        bytes.begin());
    });
  }

  /// `fill`: fills rows of the inputs, as data::feed_inputs() demands.
  void predict_batch(runtime::Executor& executor, std::size_t program,
                     const std::function<void(std::int64_t row, const device::TensorView& rows)>& fill) {
    const auto begin = std::chrono::steady_clock::now();
    now_at("predicting", ++batches_);
    executor.begin_step(batches_ - 1);
    naming_step(batches_ - 1, [&] {
      if (const std::optional<device::TensorView> inputs = executor.find_input(program, "inputs")) {
        data::feed_inputs(executor.host(device::Access::write), *inputs, fill);
      }
      executor.run(program, device::Scalars{.seed = job_.seed, .first_sample = done_});
      if (record_.is_first()) {
        // The outputs are copied, because ranks that wait for a stream run agreements, which reuse the outputs' memory.
        const device::HostTensor outputs(executor.host(device::Access::read),
                                         executor.output(program, workload::forward_output), device::Access::read);
        outputs_.assign(outputs.bytes().begin(), outputs.bytes().end());
        predictions_->write(outputs_);
      } else {
        executor.queue().finish();
      }
      await_writing();
    });
    done_ += executor.call_rows(program).front();
    record_.count_step(metrics::seconds_since(begin));
    record_.summary.steps = done_;
    if (executor.call_rows(program).front() == compiled_.evaluation_rows.front()) {  // the step of `plan`
      record_.summary.ranks[0].sent_bytes = sent_in_call(executor, program, ++whole_batches_);
    }
  }

  std::vector<std::byte> rows_;     ///< rows of a record that are predicted next
  std::vector<std::byte> outputs_;  ///< outputs of a batch, on the first rank
  std::int64_t done_ = 0;           ///< samples done
  std::int64_t batches_ = 0;
  std::int64_t whole_batches_ = 0;  ///< batches of full size
};

}  // namespace

metrics::Summary run_predicting(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                                metrics::Summary& failed) {
  return PredictTask(job, compiled, settings).run(failed);
}

}  // namespace shardrun::train
