#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <shardrun/engine.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/stop.h"
#include "core/data/npy_stream.h"
#include "core/train/rank_task.h"
#include "core/train/running_engine.h"

namespace shardrun::train {
namespace {

using plugins::ArrayView;
using plugins::MakeArray;

// What the first rank sends in place of a record.
const ArrayView end_of_records{.element = SR_ELEMENT_I32, .shape = {0}};
const ArrayView stream_waits{.element = SR_ELEMENT_I32, .shape = {0, 0}};

/// A copy of a descriptor of this process, or the file.
files::FileDescriptor open_stream(const std::filesystem::path& path, int standard, int flags) {
  files::FileDescriptor file(job::is_standard(path) ? ::fcntl(standard, F_DUPFD_CLOEXEC, 3)
                                                    : ::open(path.c_str(), flags | O_CLOEXEC, 0666));
  if (!file.is_open()) {
    throw files::system_error("open", job::is_standard(path) ? "-" : path, errno);
  }
  return file;
}

/// The first rank reads the records and writes the predictions. Every rank gets the record, or its part of it.
class InferTask : private RankTask, private plugins::EngineRecords {
 public:
  using RankTask::RankTask;

  metrics::Summary run(metrics::Summary& failed) {
    runtime::Executor executor(compiled_.programs, *compiled_.device);
    prepare(executor);
    return guarded(executor, failed, [&] {
      open_streams();
      RunningEngine running(job_, compiled_, settings_.link, executor);
      ranks_ = &running.ranks();
      settings_.link.barrier();
      const StepsUnderWay from_here_on;
      {
        const CallEnd end{engine_call_};
        running.instance().infer(*this);
      }
      end_traced(true);
      running.ranks().require_no_messages();
      require_all_written();
      record_.finish_progress();
      tell_end();
      return signal_;
    });
  }

 private:
  /// Ends the engine's call also where it throws, while the executor is there.
  struct CallEnd {
    ~CallEnd() { call.reset(); }
    std::optional<runtime::TimedCall>& call;
  };

  /// A record that has no predictions yet.
  struct Pending {
    std::int64_t rows;
    bool is_sample;  ///< of one dimension
  };

  void open_streams() {
    if (!is_first()) {
      return;
    }
    const data::Waiting waiting = [this] { return wait_on(); };
    reader_.emplace(open_stream(job_.infer.from, settings_.standard_input, O_RDONLY),
                    job::is_standard(job_.infer.from) ? "standard input" : job_.infer.from.string(), waiting);
    writer_.emplace(open_stream(job_.infer.to, settings_.standard_output, O_WRONLY | O_CREAT | O_TRUNC),
                    job::is_standard(job_.infer.to) ? "standard output" : job_.infer.to.string(), waiting);
  }

  /// A stream may wait for longer than other ranks wait for this one. Returns false if all are asked to stop.
  bool wait_on() {
    if (signal_ == 0) {
      std::vector<float> none;
      static_cast<void>(share(stream_waits, none));
      signal_ = stopped();
    }
    return signal_ == 0;
  }

  /// Gives what the first rank sends to all ranks.
  ArrayView share(const std::optional<ArrayView>& sent, std::vector<float>& values) {
    ArrayView whole;
    ranks_->broadcast(sent, 0, [&](const ArrayView& like) {
      whole = like;
      values.resize(static_cast<std::size_t>(like.elements()));
      return values.data();
    });
    return whole;
  }

  /// On the other ranks: what the first sends once its stream does not wait, or the end if all are asked to stop.
  ArrayView hear(std::vector<float>& values) {
    while (signal_ == 0) {
      ArrayView sent = share(std::nullopt, values);
      if (sent.element != stream_waits.element || sent.shape != stream_waits.shape) {
        return sent;
      }
      signal_ = stopped();
    }
    return end_of_records;
  }

  [[nodiscard]] bool is_first() const { return compiled_.engine->request.rank == 0; }

  /// The next record that has the right shape. Of malformed ones the person is told, or the job fails.
  std::optional<data::NpyRecord> read() {
    for (;;) {
      try {
        std::optional<data::NpyRecord> record = reader_->next();
        if (record) {
          require_shape(*record);
        }
        return record;
      } catch (const Error& malformed) {
        if (signal_ != 0) {
          return std::nullopt;
        }
        if (malformed.code() != ErrorCode::data || job_.infer.malformed == job::Malformed::stop) {
          throw;
        }
        ++skipped_;
        record_.say(fmt::format("skipped: {}", malformed.message()));
      }
    }
  }

  void require_shape(const data::NpyRecord& record) const {
    const std::int64_t features = compiled_.engine->request.features;
    const std::size_t dimensions = record.shape.size();
    if (dimensions < 1 || dimensions > 2 || (features > 0 && record.shape.back() != features)) {
      throw Error(ErrorCode::data,
                  fmt::format("record {}: its shape is [{}], expected [{}] or [samples, {}]", record.number,
                              fmt::join(record.shape, ", "), features > 0 ? fmt::format("{}", features) : "features",
                              features > 0 ? fmt::format("{}", features) : "features"));
    }
  }

  /// With traces a record is a step, from here to the next one. The engine runs between the calls.
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

  /// Calls what the host does for the engine. Afterwards the engine goes on.
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

  /// A stop is an end, which all ranks have heard.
  bool read_record(const MakeArray& make) {
    signal_ = signal_ != 0 ? signal_ : stopped();
    now_at("inferring", records_ + 1);
    std::optional<data::NpyRecord> record;
    ArrayView sent = end_of_records;
    if (is_first() && signal_ == 0 && (record = read())) {
      sent = {.shape = record->shape, .address = record->values.data()};
    }
    if (signal_ != 0) {
      return false;
    }
    std::vector<float> values;
    const ArrayView whole = is_first() ? share(sent, values) : hear(values);
    if (whole.element == end_of_records.element) {
      return false;
    }
    const std::int64_t width = whole.shape.back();
    const std::int64_t rows = whole.shape.size() == 1 ? 1 : whole.shape.front();
    pending_.push_back({rows, whole.shape.size() == 1});
    const auto [first, own_rows] = compiled_.engine->rows_of(rows);
    void* const to = make({.shape = {own_rows, width}});
    if (own_rows * width > 0) {
      std::memcpy(to, values.data() + first * width, static_cast<std::size_t>(own_rows * width) * sizeof(float));
    }
    return true;
  }

  void write_predictions(const ArrayView& predictions) {
    if (pending_.empty()) {
      throw Error(ErrorCode::plugin, "it writes predictions for more records than it has read");
    }
    if (predictions.element != SR_ELEMENT_F32) {
      throw Error(ErrorCode::plugin, "its predictions are i32, expected f32");
    }
    std::vector<float> values;
    ArrayView whole;
    const MakeArray make = [&](const ArrayView& like) {
      whole = like;
      values.resize(static_cast<std::size_t>(like.elements()));
      return values.data();
    };
    if (compiled_.engine->plugin.takes_whole_batch()) {
      ranks_->broadcast(predictions, first_with(predictions, pending_.front().rows), make);
    } else {
      ranks_->all_gather(predictions, 0, make);
    }
    const Pending record = pending_.front();
    pending_.pop_front();
    ++records_;
    const std::int64_t outputs = compiled_.engine->request.outputs;
    if (whole.shape.size() != 2 || whole.shape[0] != record.rows || (outputs > 0 && whole.shape[1] != outputs)) {
      throw Error(ErrorCode::plugin, fmt::format("the predictions of record {} are [{}], expected [{}, {}]", records_,
                                                 fmt::join(whole.shape, ", "), record.rows,
                                                 outputs > 0 ? fmt::format("{}", outputs) : "outputs"));
    }
    if (is_first()) {
      writer_->write(record.is_sample ? std::vector{whole.shape[1]} : whole.shape, values);
      tell_progress();
    }
    await_writing();
  }

  /// The stream has taken the predictions, on all ranks.
  void await_writing() {
    std::vector<float> none;
    if (signal_ == 0) {
      static_cast<void>(is_first() ? share(end_of_records, none) : hear(none));
    }
  }

  /// The first rank with predictions for so many rows. Those for no rows have no elements.
  std::uint32_t first_with(const ArrayView& predictions, std::int64_t rows) {
    const bool is_of_none = rows == 0 && predictions.shape.size() == 2;
    std::vector<double> has(compiled_.engine->request.world_size);
    has[compiled_.engine->request.rank] = predictions.elements() > 0 || is_of_none ? 1 : 0;
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

  void tell_progress() {
    record_.summary.steps = records_;
    const auto now = std::chrono::steady_clock::now();
    if (now - told_ > std::chrono::milliseconds(500)) {
      told_ = now;
      record_.now_at("inferring record", records_);
    }
  }

  void tell_end() {
    record_.summary.steps = records_;
    if (is_first()) {
      record_.say(fmt::format("{}{}", counted(records_, "record"),
                              skipped_ == 0 ? "" : fmt::format(", {} malformed and skipped", skipped_)));
    }
  }

  std::optional<data::NpyReader> reader_;  ///< on the first rank, as the next
  std::optional<data::NpyWriter> writer_;
  runtime::ArrayCollectives* ranks_ = nullptr;
  std::deque<Pending> pending_;
  std::optional<runtime::TimedCall> engine_call_;  ///< while it is recorded
  std::int64_t read_ = 0;                          ///< records
  std::int64_t records_ = 0;                       ///< with predictions
  std::int64_t skipped_ = 0;
  int signal_ = 0;
  std::chrono::steady_clock::time_point told_;
};

}  // namespace

metrics::Summary run_inferring(const job::Job& job, compile::Compiled& compiled, const StepSettings& settings,
                               metrics::Summary& failed) {
  return InferTask(job, compiled, settings).run(failed);
}

}  // namespace shardrun::train
