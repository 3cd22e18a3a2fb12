#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/stop.h"
#include "core/checkpoint/given_weights.h"
#include "core/data/feed.h"
#include "core/data/npy.h"
#include "core/data/npy_stream.h"
#include "core/device/host_tensor.h"
#include "core/files/atomic_file.h"
#include "core/train/rank_task.h"

namespace shardrun::train {
namespace {

/// The output of predictions: a file, which appears when it is complete, or a stream.
class Predictions {
 public:
  /// Opens a stream. `standard`: the descriptor of standard output. `waiting`: as of data::NpyWriter.
  Predictions(const std::filesystem::path& to, int standard, const data::Waiting& waiting) {
    std::error_code none;
    const bool is_file =
        !job::is_standard(to) && (!std::filesystem::exists(to, none) || std::filesystem::is_regular_file(to, none));
    if (is_file) {
      path_ = to;
      return;
    }
    files::FileDescriptor stream(job::is_standard(to) ? ::fcntl(standard, F_DUPFD_CLOEXEC, 3)
                                                      : ::open(to.c_str(), O_WRONLY | O_CLOEXEC));
    if (!stream.is_open()) {
      throw files::system_error("open", job::is_standard(to) ? "standard output" : to, errno);
    }
    stream_.emplace(std::move(stream), job::is_standard(to) ? "standard output" : to.string(), waiting);
  }

  /// Makes the file, which a signal before the first step would leave behind.
  void open_file() {
    if (!path_.empty()) {
      file_.emplace(path_);
    }
  }

  /// Begins an array of this shape. `only`: no other follows. Throws Error{io} if there is no room for that.
  void begin(const std::vector<std::int64_t>& shape, bool only) {
    const std::string header = data::npy_header("<f4", shape);
    if (only && file_) {
      file_->reserve(header.size() + static_cast<std::uint64_t>(graph::element_count(shape)) * sizeof(float));
    }
    write(std::as_bytes(std::span(header)));
  }

  void write(std::span<const std::byte> bytes) {
    if (file_) {
      file_->write(bytes);
    } else {
      stream_->write(bytes);
    }
  }

  void commit() {
    if (file_) {
      file_->commit();
    }
  }

 private:
  std::filesystem::path path_;  ///< of the file
  std::optional<files::AtomicFile> file_;
  std::optional<data::NpyWriter> stream_;
};

/// Applies a model to arrays, a batch at a time. Every rank reads its rows; the first writes what all have computed.
class PredictTask : private RankTask {
 public:
  using RankTask::RankTask;

  metrics::Summary run(metrics::Summary& failed) {
    runtime::Executor executor(compiled_.programs, *compiled_.device);
    prepare(executor);
    return guarded(executor, failed, [&] {
      now_at("loading weights", 0, "loading weights");
      if (std::ranges::find(compiled_.graph.states, graph::StateKind::field, &graph::State::kind) !=
          compiled_.graph.states.end()) {
        runtime::initialize(compiled_.graph, job_.seed, executor);  // the others are loaded
      }
      checkpoint::load_parameters(compiled_.weights->source(), compiled_.graph, executor);
      if (record_.is_first()) {
        const data::Waiting waiting = [this] { return wait_on(); };
        predictions_.emplace(job_.infer.to, settings_.standard_output, waiting);
        if (compiled_.dataset == nullptr) {
          records_.emplace(open_records(),
                           job::is_standard(job_.infer.from) ? "standard input" : job_.infer.from.string(), waiting);
        }
      }
      settings_.link.barrier();
      const StepsUnderWay from_here_on;
      record_.now_at(metrics::first_step_activity);
      if (record_.is_first()) {
        predictions_->open_file();
      }
      if (compiled_.dataset != nullptr) {
        predict_array(executor);
      } else {
        predict_records(executor);
      }
      record_.finish_progress();
      if (signal_ == 0 && record_.is_first()) {
        predictions_->commit();
      }
      return signal_;
    });
  }

 private:
  void predict_array(runtime::Executor& executor) {
    const std::int64_t samples = compiled_.dataset->evaluation_samples();
    const std::vector<std::size_t> programs =
        executor.find_calls(workload::forward_function, compiled_.evaluation_rows);
    if (record_.is_first()) {
      predictions_->begin(shape_of_outputs(samples), true);
    }
    await_writing();
    for (auto program = programs.begin(); program != programs.end() && signal_ == 0; ++program) {
      predict_batch(executor, *program, [&](std::int64_t row, const device::TensorView& rows) {
        compiled_.dataset->fill_evaluation(done_ + row, rows, {});
      });
      tell_progress(samples);
    }
  }

  [[nodiscard]] files::FileDescriptor open_records() const {
    const std::filesystem::path& from = job_.infer.from;
    files::FileDescriptor file(job::is_standard(from) ? ::fcntl(settings_.standard_input, F_DUPFD_CLOEXEC, 3)
                                                      : ::open(from.c_str(), O_RDONLY | O_CLOEXEC));
    if (!file.is_open()) {
      throw files::system_error("open", job::is_standard(from) ? "standard input" : from, errno);
    }
    return file;
  }

  // The first rank tells the others how it goes on: of a stream of records how many rows come next, and that a stream
  // waits, for longer perhaps than the others would wait for this rank.

  static constexpr std::int32_t end_of_records = 0;
  static constexpr std::int32_t stream_waits = 1;
  static constexpr std::int32_t no_rows = 2;  ///< it goes on; more: with so many rows

  /// What the first rank says next. All ranks call it at the same point.
  std::int32_t told(std::int32_t own) {
    return settings_.link.agree(own, static_cast<std::int32_t>(job_.infer.batch) + no_rows);
  }

  /// On the first rank: called while a stream waits. Returns false if all are asked to stop.
  bool wait_on() {
    if (signal_ == 0) {
      static_cast<void>(told(stream_waits));
      signal_ = stopped();
    }
    return signal_ == 0;
  }

  /// On the other ranks: what the first says once no stream waits, or the end if all are asked to stop.
  std::int32_t hear() {
    std::int32_t next = stream_waits;
    while (signal_ == 0 && (next = told(end_of_records)) == stream_waits) {
      signal_ = stopped();
    }
    return signal_ == 0 ? next : end_of_records;
  }

  /// On all ranks: the first has written what it had. Then all may be asked to stop.
  void await_writing() {
    if (signal_ == 0) {
      static_cast<void>(record_.is_first() ? told(no_rows) : hear());
    }
    signal_ = signal_ != 0 ? signal_ : stopped();
  }

  void predict_records(runtime::Executor& executor) {
    if (record_.is_first()) {
      while (const std::optional<data::NpyRecord> record = next_record()) {
        predict_record(executor, *record);
        tell_progress(0);
      }
      if (signal_ == 0) {
        static_cast<void>(told(end_of_records));
        record_.say(fmt::format("{}{}", counted(counted_, "record"),
                                skipped_ == 0 ? "" : fmt::format(", {} malformed and skipped", skipped_)));
      }
      return;
    }
    for (std::int32_t next = hear(); next != end_of_records; next = hear()) {
      rows_.resize(static_cast<std::size_t>(next - no_rows) * static_cast<std::size_t>(width()));
      predict_rows(executor, next - no_rows);
    }
  }

  /// The next record of the right shape; nothing at the end. Of malformed ones the person is told, or the job fails.
  std::optional<data::NpyRecord> next_record() {
    while (signal_ == 0) {
      try {
        std::optional<data::NpyRecord> record = records_->next();
        if (signal_ != 0) {
          break;
        }
        if (record) {
          require_samples(*record);
        }
        return record;
      } catch (const Error& malformed) {
        if (signal_ != 0) {
          break;
        }
        if (malformed.code() != ErrorCode::data || job_.infer.malformed == job::Malformed::stop) {
          throw;
        }
        ++skipped_;
        record_.say(fmt::format("skipped: {}", malformed.message()));
      }
    }
    return std::nullopt;
  }

  /// Numbers in a sample.
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

  /// A record is one sample or several.
  void require_samples(const data::NpyRecord& record) const {
    const bool is_sample = record.shape.size() == 1;
    std::int64_t found = record.shape.empty() ? 0 : 1;
    for (std::size_t d = is_sample ? 0 : 1; d < record.shape.size(); ++d) {
      if (__builtin_mul_overflow(found, record.shape[d], &found)) {
        found = -1;
        break;
      }
    }
    if (found != width()) {
      throw Error(ErrorCode::data, fmt::format("record {}: its shape is [{}], expected [{}] or [samples, {}]",
                                               record.number, fmt::join(record.shape, ", "), width(), width()));
    }
    if (input_type().dtype != graph::DType::i32) {
      return;
    }
    const std::int64_t vocab = vocabulary();
    const auto bad = std::ranges::find_if(record.values, [&](float token) {
      return token < 0 || token != std::floor(token) || (vocab > 0 && token >= static_cast<float>(vocab));
    });
    if (bad != record.values.end()) {
      throw Error(ErrorCode::data, fmt::format("record {}: it has the token {}, and the model has tokens 0 to {}",
                                               record.number, *bad, vocab - 1));
    }
  }

  [[nodiscard]] std::int64_t vocabulary() const {
    const OptionValues& options = job_.model.options;
    return options.has("vocab") ? options.integer("vocab") : compiled_.settings.data.vocab;
  }

  /// On the first rank.
  void predict_record(runtime::Executor& executor, const data::NpyRecord& record) {
    const std::int64_t rows = record.shape.size() == 1 ? 1 : record.shape.front();
    std::vector<std::int64_t> shape = shape_of_outputs(rows);
    if (record.shape.size() == 1) {
      shape.erase(shape.begin());
    }
    predictions_->begin(shape, false);
    for (std::int64_t done = 0; done < rows && signal_ == 0;) {
      const std::int64_t now =
          *std::ranges::find_if(compiled_.evaluation_rows, [&](std::int64_t count) { return count <= rows - done; });
      const auto from = record.values.begin() + done * width();
      rows_.assign(from, from + now * width());
      static_cast<void>(told(static_cast<std::int32_t>(now) + no_rows));
      predict_rows(executor, now);
      done += now;
    }
    ++counted_;
  }

  /// On all ranks, the rows that the first has.
  void predict_rows(runtime::Executor& executor, std::int64_t rows) {
    settings_.link.broadcast(std::as_writable_bytes(std::span(rows_)));
    const std::size_t program = executor.find_calls(workload::forward_function, {rows}).front();
    predict_batch(executor, program, [&](std::int64_t row, const device::TensorView& to) {
      const auto from = rows_.begin() + row * (to.elements() / to.shape[0]);
      if (to.dtype == graph::DType::i32) {
        std::transform(from, from + to.elements(), device::elements_of<std::int32_t>(to).begin(),
                       [](float token) { return static_cast<std::int32_t>(token); });
      } else {
        std::copy_n(from, to.elements(), device::elements_of<float>(to).begin());
      }
    });
  }

  /// `fill`: as of data::feed_inputs().
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
        // A copy: a stream that waits lets the ranks agree meanwhile, which takes the outputs' memory.
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
  }

  void tell_progress(std::int64_t samples) {
    const auto now = std::chrono::steady_clock::now();
    if (now - told_ > std::chrono::milliseconds(500)) {
      told_ = now;
      record_.now_at("predicting sample", done_, samples);
    }
  }

  std::optional<Predictions> predictions_;  ///< on the first rank, as the next
  std::optional<data::NpyReader> records_;  ///< of a stream
  std::vector<float> rows_;                 ///< of a record, that are computed next
  std::vector<std::byte> outputs_;          ///< of a batch, on the first rank
  std::int64_t counted_ = 0;                ///< records with predictions
  std::int64_t skipped_ = 0;
  std::int64_t done_ = 0;  ///< samples
  std::int64_t batches_ = 0;
  int signal_ = 0;
  std::chrono::steady_clock::time_point told_;
};

}  // namespace

metrics::Summary run_predicting(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                                metrics::Summary& failed) {
  return PredictTask(job, compiled, settings).run(failed);
}

}  // namespace shardrun::train
