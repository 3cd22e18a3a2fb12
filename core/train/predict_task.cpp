#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
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

/// Where predictions go: a file that appears when all are in it, or a stream.
class Predictions {
 public:
  /// `standard`: the descriptor of standard output. `waiting`: as of data::NpyWriter.
  Predictions(const std::filesystem::path& to, int standard, const data::Waiting& waiting) {
    std::error_code none;
    const bool is_file =
        !job::is_standard(to) && (!std::filesystem::exists(to, none) || std::filesystem::is_regular_file(to, none));
    if (is_file) {
      file_.emplace(to);
      return;
    }
    files::FileDescriptor stream(job::is_standard(to) ? ::fcntl(standard, F_DUPFD_CLOEXEC, 3)
                                                      : ::open(to.c_str(), O_WRONLY | O_CLOEXEC));
    if (!stream.is_open()) {
      throw files::system_error("open", job::is_standard(to) ? "standard output" : to, errno);
    }
    stream_.emplace(std::move(stream), job::is_standard(to) ? "standard output" : to.string(), waiting);
  }

  /// Begins an array of this shape.
  void begin(const std::vector<std::int64_t>& shape) {
    const std::string header = data::npy_header(shape);
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
      runtime::initialize(compiled_.graph, job_.seed, executor);
      checkpoint::load_parameters(compiled_.weights->source(), compiled_.graph, executor);
      if (record_.is_first()) {
        predictions_.emplace(job_.infer.to, settings_.standard_output, [this] { return signal_ == 0; });
      }
      settings_.link.barrier();
      const StepsUnderWay from_here_on;
      predict_array(executor);
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
      const device::TensorView outputs = executor.output(programs.front(), workload::forward_output);
      std::vector<std::int64_t> shape(outputs.shape.begin(), outputs.shape.begin() + outputs.rank);
      shape.front() = samples;
      predictions_->begin(shape);
    }
    for (const std::size_t program : programs) {
      if ((signal_ = stopped()) != 0) {
        return;
      }
      predict_batch(executor, program, [&](std::int64_t row, const device::TensorView& rows) {
        compiled_.dataset->fill_evaluation(done_ + row, rows, {});
      });
      tell_progress(samples);
    }
  }

  /// `fill`: as of data::feed_inputs().
  void predict_batch(runtime::Executor& executor, std::size_t program,
                     const std::function<void(std::int64_t row, const device::TensorView& rows)>& fill) {
    const auto begin = std::chrono::steady_clock::now();
    now_at("predicting", ++batches_);
    naming_step(batches_ - 1, [&] {
      executor.begin_step(batches_ - 1);
      if (const std::optional<device::TensorView> inputs = executor.find_input(program, "inputs")) {
        data::feed_inputs(executor.host(device::Access::write), *inputs, fill);
      }
      executor.run(program, device::Scalars{.seed = job_.seed, .first_sample = done_});
      if (record_.is_first()) {
        const device::HostTensor outputs(executor.host(device::Access::read),
                                         executor.output(program, workload::forward_output), device::Access::read);
        predictions_->write(outputs.bytes());
      } else {
        executor.queue().finish();
      }
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

  std::optional<Predictions> predictions_;  ///< on the first rank
  std::int64_t done_ = 0;                   ///< samples
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
