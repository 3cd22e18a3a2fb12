#include <fmt/format.h>
#include <fmt/ranges.h>
#include <shardrun/engine.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>

#include "core/base/error.h"
#include "core/base/stop.h"
#include "core/train/running_engine.h"
#include "core/train/stream_task.h"

namespace shardrun::train {
namespace {

using plugins::ArrayView;
using plugins::MakeArray;

/// Lets an engine predict a stream of records. Every rank gets the record, or its part of it.
class InferTask : private StreamTask, private plugins::EngineRecords {
 public:
  using StreamTask::StreamTask;

  metrics::Summary run(metrics::Summary& failed) {
    runtime::Executor executor(compiled_.programs, *compiled_.device);
    prepare(executor);
    return guarded(executor, failed, [&] {
      open_streams(engine().sample.dtype());
      RunningEngine running(job_, compiled_, settings_.link, executor);
      ranks_ = &running.ranks();
      settings_.link.barrier();
      const StepsUnderWay from_here_on;
      if (record_.is_first()) {
        predictions_->open_file();
      }
      writing([&] {
        {
          const CallEnd end{engine_call_};
          running.instance().infer(*this);
        }
        end_traced(true);
        running.ranks().require_no_messages();
        require_all_written();
        record_.summary.steps = counted_;
      });
      return signal_;
    });
  }

 private:
  /// Ends the engine's call while the executor still exists, also if the call throws.
  struct CallEnd {
    ~CallEnd() { call.reset(); }
    std::optional<runtime::TimedCall>& call;
  };

  /// A record that has no predictions yet.
  struct Pending {
    std::int64_t rows;
    bool is_sample;  ///< the record is a single sample without its own dimension; known on the first rank
  };

  [[nodiscard]] const compile::JobEngine& engine() const { return *compiled_.engine; }

  /// Whether a shape is that of one sample. -1 in `sample` stands for any size above 0.
  [[nodiscard]] static bool fits(std::span<const std::int64_t> shape, const std::vector<std::int64_t>& sample) {
    return std::ranges::equal(shape, sample, [](std::int64_t extent, std::int64_t expected) {
      return extent == expected || (expected < 0 && extent > 0);
    });
  }

  [[nodiscard]] std::int64_t samples_of(const data::NpyRecord& record) const override {
    const std::vector<std::int64_t>& sample = engine().sample.shape;
    const std::span shape(record.shape);
    if (fits(shape, sample)) {
      return 1;
    }
    if (shape.empty() || !fits(shape.subspan(1), sample)) {
      throw wrong_shape(record, sample);
    }
    return shape.front();
  }

  /// For traces, a record is a step that lasts until the next record. The engine runs between the calls.
  bool next(const MakeArray& make) override {
    engine_call_.reset();
    begin_traced(read_);
    const bool has_record = timed(&InferTask::read_record, "read record", make);
    read_ += has_record ? 1 : 0;
    if (!has_record) {
      end_traced(false);
    }
    return has_record;
  }

  void write(const ArrayView& predictions) override {
    engine_call_.reset();
    timed(&InferTask::write_predictions, "write predictions", predictions);
  }

  /// Runs `act`, which the host does for the engine. Afterwards the engine continues.
  template <class Result, class Argument>
  Result timed(Result (InferTask::*act)(const Argument&), std::string_view name, const Argument& argument) {
    using Kind = runtime::Timeline::Call::Kind;
    struct GoesOn {
      ~GoesOn() { task.engine_call_.emplace(task.executor(), Kind::engine, "infer"); }
      InferTask& task;
    } const afterwards{*this};
    const runtime::TimedCall call(executor(), Kind::host, name);
    return (this->*act)(argument);
  }

  /// A request to stop ends the stream. All ranks get it at the same point.
  bool read_record(const MakeArray& make) {
    signal_ = signal_ != 0 ? signal_ : stopped();
    now_at("inferring", counted_ + 1);
    const std::optional<std::int64_t> rows = next_record();
    if (!rows) {
      return false;
    }
    std::optional<ArrayView> sent;
    bool is_sample = false;
    if (record_.is_first()) {
      is_sample = record().shape.size() == engine().sample.shape.size();
      sent = {.element = engine().sample.element, .shape = record().shape};
      sent->address = const_cast<std::byte*>(record().bytes.data());  // not changed: it is only sent
      if (is_sample) {
        sent->shape.insert(sent->shape.begin(), 1);
      }
    }
    std::vector<std::byte> whole;
    ArrayView part;
    ranks_->broadcast(sent, 0, [&](const ArrayView& like) {
      part = like;
      whole.resize(like.bytes());
      return whole.data();
    });
    pending_.push_back({*rows, is_sample});
    const auto [first, own_rows] = engine().rows_of(*rows);
    const std::size_t bytes_of_row = *rows == 0 ? 0 : whole.size() / static_cast<std::size_t>(*rows);
    part.shape.front() = own_rows;
    void* const to = make(part);
    if (const std::size_t bytes = static_cast<std::size_t>(own_rows) * bytes_of_row; bytes > 0) {
      std::memcpy(to, whole.data() + static_cast<std::size_t>(first) * bytes_of_row, bytes);
    }
    return true;
  }

  void write_predictions(const ArrayView& predictions) {
    if (pending_.empty()) {
      throw Error(ErrorCode::plugin, "it writes predictions for more records than it has read");
    }
    if (engine().plugin.trains() && predictions.element != SR_ELEMENT_F32) {
      throw Error(ErrorCode::plugin,
                  fmt::format("its predictions are {}, expected f32", to_string(predictions.dtype())));
    }
    std::vector<std::byte> values;
    ArrayView whole;
    const MakeArray make = [&](const ArrayView& like) {
      whole = like;
      values.resize(like.bytes());
      return values.data();
    };
    if (engine().plugin.takes_whole_batch()) {
      ranks_->broadcast(predictions, first_with(predictions, pending_.front().rows), make);
    } else {
      ranks_->all_gather(predictions, 0, make);
    }
    const Pending record = pending_.front();
    pending_.pop_front();
    require_rows(whole, record.rows);
    if (record_.is_first()) {
      std::vector<std::int64_t> shape = whole.shape;
      if (record.is_sample) {
        shape.erase(shape.begin());
      }
      predictions_->begin(whole.dtype(), shape, false);
      predictions_->write(values);
    }
    count_record();
    record_.summary.steps = counted_;
    tell_progress("inferring record", counted_, 0);
    await_writing();
  }

  /// An engine that can be trained has a fixed number of outputs, which is checked here.
  void require_rows(const ArrayView& whole, std::int64_t rows) const {
    const std::int64_t outputs = engine().request.outputs;
    const bool has_rows = !whole.shape.empty() && whole.shape[0] == rows;
    if (!engine().plugin.trains()
            ? !has_rows
            : !has_rows || whole.shape.size() != 2 || (outputs > 0 && whole.shape[1] != outputs)) {
      throw Error(ErrorCode::plugin, fmt::format("the predictions of record {} are [{}], expected [{}, {}]",
                                                 counted_ + 1, fmt::join(whole.shape, ", "), rows,
                                                 !engine().plugin.trains() ? "..."
                                                 : outputs > 0             ? fmt::format("{}", outputs)
                                                                           : "outputs"));
    }
  }

  /// The first rank with predictions, or 0 if none has. For 0 rows, an empty array with two dimensions counts.
  std::uint32_t first_with(const ArrayView& predictions, std::int64_t rows) {
    const bool is_of_none = rows == 0 && predictions.shape.size() >= 2;
    std::vector<double> has(engine().request.world_size);
    has[engine().request.rank] = predictions.elements() > 0 || is_of_none ? 1 : 0;
    ranks_->add_up(has);
    const auto found = std::find(has.begin(), has.end(), 1.0);
    return found == has.end() ? 0 : static_cast<std::uint32_t>(found - has.begin());
  }

  void require_all_written() const {
    if (!pending_.empty()) {
      throw Error(ErrorCode::plugin,
                  fmt::format("engine '{}' ends without predictions for {} of the records that it has "
                              "read",
                              job_.engine.name, pending_.size()));
    }
  }

  runtime::ArrayCollectives* ranks_ = nullptr;
  std::deque<Pending> pending_;
  std::optional<runtime::TimedCall> engine_call_;  ///< set while the engine's call is recorded
  std::int64_t read_ = 0;                          ///< records read so far
};

}  // namespace

metrics::Summary run_inferring(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                               metrics::Summary& failed) {
  return InferTask(job, compiled, settings).run(failed);
}

}  // namespace shardrun::train
