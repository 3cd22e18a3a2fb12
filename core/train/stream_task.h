#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "core/data/npy_stream.h"
#include "core/files/atomic_file.h"
#include "core/graph/tensor_type.h"
#include "core/train/rank_task.h"

namespace shardrun::train {

/// The output of predictions: a file, which appears when it is complete, or a stream.
class Predictions {
 public:
  /// Opens a stream. `standard`: the descriptor of standard output. `waiting`: as of data::NpyWriter.
  Predictions(const std::filesystem::path& to, int standard, const data::Waiting& waiting);

  /// Makes the file, which a signal before the first step would leave behind.
  void open_file();
  /// Begins an array of this shape and type; bf16 becomes f32, which NumPy has. `only`: no other follows. Throws
  /// Error{io} if there is no room for that.
  void begin(graph::DType dtype, const std::vector<std::int64_t>& shape, bool only);
  /// Writes elements of the array that was begun.
  void write(std::span<const std::byte> elements);
  void commit();

 private:
  void put(std::span<const std::byte> bytes);

  std::filesystem::path path_;  ///< of the file
  std::optional<files::AtomicFile> file_;
  std::optional<data::NpyWriter> stream_;
  graph::DType dtype_ = graph::DType::f32;  ///< of the array that was begun
};

/// The task of predicting: the first rank reads the stream of records and writes predictions. All ranks call the
/// functions at the same points.
class StreamTask : protected RankTask {
 protected:
  using RankTask::RankTask;

  /// Opens the predictions. With `records`, the stream of records, too, whose elements get that type.
  void open_streams(std::optional<graph::DType> records);
  /// Goes on to the next record. Returns its samples; nothing at the end, or if all are asked to stop. The first rank
  /// has it in record().
  [[nodiscard]] std::optional<std::int64_t> next_record();
  [[nodiscard]] const data::NpyRecord& record() const { return *read_; }
  /// The samples of a record. Throws Error{data} if its shape or a value is wrong.
  [[nodiscard]] virtual std::int64_t samples_of(const data::NpyRecord& record) const = 0;
  /// Waits for the first rank to have written. Then all may be asked to stop.
  void await_writing();
  /// Counts a record whose predictions are written.
  void count_record() { ++counted_; }
  /// Shows how far it is, now and then. `total`: 0 if it is not known.
  void tell_progress(std::string_view what, std::int64_t done, std::int64_t total);
  /// Ends the stream of records, and the file of predictions unless all were asked to stop.
  void end_streams();

  std::optional<Predictions> predictions_;  ///< on the first rank
  std::int64_t counted_ = 0;                ///< records with predictions
  int signal_ = 0;                          ///< that asked all ranks to stop

 private:
  [[nodiscard]] std::int32_t told(std::int32_t own);
  [[nodiscard]] bool wait_on();
  [[nodiscard]] std::int32_t hear();
  [[nodiscard]] std::int32_t read_next();

  std::optional<data::NpyReader> reader_;  ///< on the first rank, as the next
  std::optional<data::NpyRecord> read_;
  std::int64_t skipped_ = 0;
  std::chrono::steady_clock::time_point shown_;
};

/// "record 3: its shape is [7], expected [6] or [samples, 6]". `sample`: -1 for any extent.
[[nodiscard]] Error wrong_shape(const data::NpyRecord& record, const std::vector<std::int64_t>& sample);

}  // namespace shardrun::train
