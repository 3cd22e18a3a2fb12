#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/data/npy_stream.h"
#include "core/files/atomic_file.h"
#include "core/graph/tensor_type.h"
#include "core/train/rank_task.h"

namespace shardrun::train {

/// The output of predictions: a file, which appears once it is complete, or a stream.
class Predictions {
 public:
  /// Opens `to` unless it is a file, and waits until a pipe has a reader. `standard`: the descriptor of standard
  /// output. `waiting`: as for data::NpyWriter. If it returns false, what is put later is dropped.
  Predictions(const std::filesystem::path& to, int standard, const data::Waiting& waiting);

  /// Creates the file, if `to` is one. A file made by the constructor would stay after a signal before the first step.
  void open_file();
  /// Begins an array of this shape and type; bf16 becomes f32, because NumPy lacks bf16. `only`: no other array
  /// follows. Throws Error{io} if there is not enough room.
  void begin(graph::DType dtype, const std::vector<std::int64_t>& shape, bool only);
  /// Writes elements of the array that begin() began.
  void write(std::span<const std::byte> elements);
  /// Writes bytes as they are.
  void put(std::span<const std::byte> bytes);
  /// Notes that a record is complete.
  void end_record() noexcept { complete_bytes_ = written_bytes_; }
  /// Completes the file. Returns whether `to` is one. `drops_rest`: drops what was written after the last complete
  /// record. Throws Error{io}.
  bool commit(bool drops_rest);

 private:
  std::filesystem::path path_;  ///< of the file
  std::optional<files::AtomicFile> file_;
  std::uint64_t written_bytes_ = 0;   ///< of the file
  std::uint64_t complete_bytes_ = 0;  ///< up to the end of the last complete record
  std::optional<data::NpyWriter> stream_;
  graph::DType dtype_ = graph::DType::f32;  ///< type of the array that begin() began
};

/// A task of [infer]. The first rank reads the stream of records and writes predictions. All ranks call the functions
/// at the same points.
class StreamTask : protected RankTask {
 protected:
  using RankTask::RankTask;

  /// Opens the predictions. With `records`, also the stream of records, whose elements are converted to that type.
  void open_streams(std::optional<graph::DType> records);
  /// Opens the predictions, and the stream of records as a text with one record in each line.
  void open_lines();
  /// Goes on to the next record. Returns its number of samples; nothing at the end, or if all ranks are asked to stop.
  /// The first rank finds the record in record().
  [[nodiscard]] std::optional<std::int64_t> next_record();
  [[nodiscard]] const data::NpyRecord& record() const { return *read_; }
  /// The number of samples in a record. Throws Error{data} if its shape or a value is wrong.
  [[nodiscard]] virtual std::int64_t samples_of(const data::NpyRecord& record) const;
  /// Goes on to the next line. All ranks get what `prepare` makes of the line on the first rank. If `prepare` throws,
  /// skip() gets the error. Returns nothing at the end, or if all ranks are asked to stop. Returns "" if `prepare`
  /// does, and, unless it `waits`, if no line has come yet.
  [[nodiscard]] std::optional<std::string> next_line(const std::function<std::string(const std::string& line)>& prepare,
                                                     bool waits);
  /// The number of the line that next_line() has returned, on the first rank.
  [[nodiscard]] std::int64_t line_number() const { return lines_ ? lines_->number() : 0; }
  /// Reports a malformed record, which is skipped, or throws the error: see [infer] malformed. Called on the first
  /// rank.
  virtual void skip(const Error& malformed);
  /// Waits until the first rank has written. Then, unless `signal_` is set already, sets it to the signal that asked to
  /// stop, which is the same on all ranks; 0: none.
  void await_writing();
  void count_record();
  /// How many records are written or skipped.
  [[nodiscard]] std::int64_t passed() const { return counted_ + skipped_; }
  /// Shows the progress now and then. `total`: 0 if it is not known.
  void tell_progress(std::string_view what, std::int64_t done, std::int64_t total);
  /// Calls `run`, and then ends the stream of records and completes the file of predictions. If the ranks were asked to
  /// stop, or `run` throws, the file has the answers or records that are complete; there is none if that is none.
  void writing(const std::function<void()>& run);

  std::optional<Predictions> predictions_;  ///< on the first rank
  std::int64_t counted_ = 0;                ///< records whose predictions are written
  int signal_ = 0;                          ///< the signal that asked all ranks to stop

 private:
  [[nodiscard]] std::string counts() const;
  void keep_complete(std::string_view until);
  [[nodiscard]] std::int32_t told(std::int32_t own);
  [[nodiscard]] bool wait_on();
  [[nodiscard]] std::int32_t hear();
  [[nodiscard]] std::int32_t read_next();

  [[nodiscard]] data::InputStream open_input();
  /// Returns on all ranks what `read` returns on the first rank, or end_of_records if they are to stop.
  template <typename Read>
  [[nodiscard]] std::int32_t next_number(const Read& read);

  std::optional<data::NpyReader> reader_;  ///< on the first rank, like the next members
  std::optional<data::NpyRecord> read_;
  std::optional<data::LineReader> lines_;
  std::int64_t skipped_ = 0;
  std::chrono::steady_clock::time_point shown_;
};

/// An error such as "record 3: its shape is [7], expected [6] or [samples, 6]". `sample`: -1 stands for any size.
[[nodiscard]] Error wrong_shape(const data::NpyRecord& record, const std::vector<std::int64_t>& sample);

}  // namespace shardrun::train
