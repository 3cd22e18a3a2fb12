#include "core/train/stream_task.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <limits>
#include <string>
#include <thread>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/data/npy.h"
#include "core/device/elements.h"
#include "core/files/folder.h"
#include "core/infer/prompts.h"

namespace shardrun::train {
namespace {

// Numbers with which the first rank tells the others how to continue.
constexpr std::int32_t end_of_records = 0;
constexpr std::int32_t stream_waits = 1;  ///< the stream waits, and the other ranks wait for as long as it does
constexpr std::int32_t no_rows = 2;       ///< nothing to read; no_rows + N: N samples, or a line of N bytes

const char* descr_of(graph::DType dtype) {
  switch (dtype) {
    case graph::DType::bf16:
    case graph::DType::f32: return "<f4";
    case graph::DType::f16: return "<f2";
    case graph::DType::f64: return "<f8";
    case graph::DType::i32: return "<i4";
    case graph::DType::i64: return "<i8";
    case graph::DType::u8: return "|u1";
    case graph::DType::i8: return "|i1";
  }
  return "";
}

/// Opens a file or pipe, or copies a descriptor of this process. A pipe that is to be written waits for its reader:
/// `waiting` is called ten times a second, and the result is not open if it returns false.
files::FileDescriptor open_stream(const std::filesystem::path& path, int standard, int flags, const std::string& name,
                                  const data::Waiting& waiting) {
  constexpr std::chrono::milliseconds interval{100};
  for (;; std::this_thread::sleep_for(interval)) {
    const bool is_standard = job::is_standard(path);
    files::FileDescriptor file(is_standard ? ::fcntl(standard, F_DUPFD_CLOEXEC, 3)
                                           : ::open(path.c_str(), flags | O_NONBLOCK | O_CLOEXEC));
    if (!file.is_open() && (errno != ENXIO || !std::filesystem::is_fifo(path))) {
      throw files::system_error("open", name, errno);
    }
    if (file.is_open() && !is_standard && flags == O_WRONLY) {
      static_cast<void>(::fcntl(file.get(), F_SETFL, 0));  // only opening must not wait
    }
    if (file.is_open() || !waiting()) {
      return file;
    }
  }
}

std::string name_of(const std::filesystem::path& path, const char* standard) {
  return job::is_standard(path) ? standard : path.string();
}

}  // namespace

Predictions::Predictions(const std::filesystem::path& to, int standard, const data::Waiting& waiting) {
  std::error_code none;
  if (!job::is_standard(to) && (!std::filesystem::exists(to, none) || std::filesystem::is_regular_file(to, none))) {
    path_ = to;
    return;
  }
  const std::string name = name_of(to, "standard output");
  files::FileDescriptor file = open_stream(to, standard, O_WRONLY, name, waiting);
  if (file.is_open()) {
    stream_.emplace(std::move(file), name, waiting);
  }
}

void Predictions::open_file() {
  if (!path_.empty()) {
    file_.emplace(path_);
  }
}

void Predictions::begin(graph::DType dtype, const std::vector<std::int64_t>& shape, bool only) {
  dtype_ = dtype;
  const std::string header = data::npy_header(descr_of(dtype), shape);
  if (only && file_) {
    const std::size_t width = graph::element_bytes(dtype == graph::DType::bf16 ? graph::DType::f32 : dtype);
    file_->reserve(header.size() + static_cast<std::uint64_t>(graph::element_count(shape)) * width);
  }
  put(std::as_bytes(std::span(header)));
}

void Predictions::write(std::span<const std::byte> elements) {
  if (dtype_ != graph::DType::bf16) {
    return put(elements);
  }
  std::vector<double> values(elements.size() / graph::element_bytes(dtype_));
  device::read_elements(dtype_, elements, values);
  const std::vector<float> widened(values.begin(), values.end());
  put(std::as_bytes(std::span(widened)));
}

void Predictions::put(std::span<const std::byte> bytes) {
  if (file_) {
    file_->write(bytes);
    written_bytes_ += bytes.size();
  } else if (stream_) {
    stream_->write(bytes);
  }
}

bool Predictions::commit(bool drops_rest) {
  if (file_ && drops_rest) {
    file_->cut(complete_bytes_);
  }
  if (file_) {
    file_->commit();
  }
  return file_.has_value();
}

data::InputStream StreamTask::open_input() {
  const std::string name = name_of(job_.infer.from, "standard input");
  // Opening a pipe does not wait for a writer. Reading waits, and ends when the ranks are asked to stop.
  return {open_stream(job_.infer.from, settings_.standard_input, O_RDONLY, name, {}), name,
          [this] { return wait_on(); }};
}

void StreamTask::open_streams(std::optional<graph::DType> records) {
  if (record_.is_first()) {
    if (records) {  // first, because whoever writes these may open that pipe before the other
      reader_.emplace(open_input(), *records);
    }
    predictions_.emplace(job_.infer.to, settings_.standard_output, [this] {
      if (!predictions_) {  // it is being opened
        record_.now_at("waiting for a reader of the results");
      }
      return wait_on();
    });
  }
  await_writing();
}

void StreamTask::open_lines() {
  if (record_.is_first()) {
    lines_.emplace(open_input(), infer::most_line_bytes);
  }
  open_streams(std::nullopt);
}

/// Returns the first rank's `own`, which is the largest. All ranks call it at the same point.
std::int32_t StreamTask::told(std::int32_t own) {
  return settings_.link.agree(own, std::numeric_limits<std::int32_t>::max());
}

/// Called on the first rank while a stream waits. Returns false if all ranks are asked to stop.
bool StreamTask::wait_on() {
  if (signal_ == 0) {
    static_cast<void>(told(stream_waits));
    signal_ = stopped();
  }
  return signal_ == 0;
}

/// Called on the other ranks. Returns what the first rank tells once its stream no longer waits, or end_of_records if
/// all ranks are asked to stop.
std::int32_t StreamTask::hear() {
  std::int32_t next = stream_waits;
  while (signal_ == 0 && (next = told(end_of_records)) == stream_waits) {
    signal_ = stopped();
  }
  return signal_ == 0 ? next : end_of_records;
}

void StreamTask::await_writing() {
  if (signal_ == 0) {
    static_cast<void>(record_.is_first() ? told(no_rows) : hear());
  }
  signal_ = signal_ != 0 ? signal_ : stopped();
}

template <typename Read>
std::int32_t StreamTask::next_number(const Read& read) {
  std::int32_t next = end_of_records;
  if (!record_.is_first()) {
    next = hear();
  } else if (signal_ == 0) {
    next = read();
    static_cast<void>(signal_ == 0 ? told(next) : 0);
  }
  return signal_ != 0 ? end_of_records : next;
}

std::optional<std::int64_t> StreamTask::next_record() {
  const std::int32_t next = next_number([this] { return read_next(); });
  return next == end_of_records ? std::nullopt : std::optional<std::int64_t>(next - no_rows);
}

std::optional<std::string> StreamTask::next_line(const std::function<std::string(const std::string& line)>& prepare,
                                                 bool waits) {
  std::string line;
  const std::int32_t next = next_number([&] {
    while (waits || lines_->has_next()) {
      try {
        const std::optional<std::string> found = lines_->next();
        if (!found) {
          return end_of_records;
        }
        line = prepare(*found);
        return static_cast<std::int32_t>(line.size()) + no_rows;
      } catch (const Error& malformed) {
        const bool is_placed = malformed.message().starts_with(lines_->place());
        skip(is_placed ? malformed
                       : Error(malformed.code(), fmt::format("{}: {}", lines_->place(), malformed.message())));
      }
    }
    return no_rows;
  });
  if (next == end_of_records) {
    return std::nullopt;
  }
  line.resize(static_cast<std::size_t>(next - no_rows));
  if (!line.empty()) {
    settings_.link.broadcast(std::as_writable_bytes(std::span(line)));
  }
  return line;
}

void StreamTask::skip(const Error& malformed) {
  if (malformed.code() != ErrorCode::data || job_.infer.malformed == job::Malformed::stop) {
    throw malformed;
  }
  ++skipped_;
  record_.say(fmt::format("skipped: {}", malformed.message()));
}

std::int64_t StreamTask::samples_of(const data::NpyRecord& /*record*/) const { return 0; }

/// Reads the next record. Returns no_rows + its samples, or end_of_records. skip() gets malformed records.
std::int32_t StreamTask::read_next() {
  for (;;) {
    try {
      read_ = reader_->next();
      if (signal_ != 0 || !read_) {
        return end_of_records;
      }
      return static_cast<std::int32_t>(samples_of(*read_)) + no_rows;
    } catch (const Error& malformed) {
      if (signal_ != 0) {
        return end_of_records;
      }
      skip(malformed);
    }
  }
}

void StreamTask::tell_progress(std::string_view what, std::int64_t done, std::int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (now - shown_ > std::chrono::milliseconds(500)) {
    shown_ = now;
    record_.now_at(what, done, total);
  }
}

void StreamTask::count_record() {
  ++counted_;
  if (predictions_) {
    predictions_->end_record();
  }
}

std::string StreamTask::counts() const {
  return fmt::format("{}{}", counted(counted_, lines_ ? "answer" : "record"),
                     skipped_ == 0 ? "" : fmt::format(", {} malformed and skipped", skipped_));
}

/// Completes the first rank's file with the lines or records that are complete, if there are any. An array that is not
/// complete is useless: it has no records.
void StreamTask::keep_complete(std::string_view until) {
  if (predictions_ && counted_ > 0 && predictions_->commit(!lines_)) {
    record_.say(fmt::format("{} before the {}, in {}", counts(), until, files::human_path(job_.infer.to)));
  }
}

void StreamTask::writing(const std::function<void()>& run) {
  try {
    run();
  } catch (...) {
    try {
      keep_complete("failure");
    } catch (const std::exception&) {
      // The failure itself matters more.
    }
    throw;
  }
  record_.finish_progress();
  if (!record_.is_first()) {
    return;
  }
  if (signal_ != 0) {
    return keep_complete("stop");
  }
  if (reader_ || skipped_ > 0) {  // otherwise the last line of the run says as much
    record_.say(counts());
  }
  predictions_->commit(false);
}

Error wrong_shape(const data::NpyRecord& record, const std::vector<std::int64_t>& sample) {
  std::string text;
  for (const std::int64_t extent : sample) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", extent < 0 ? "any" : fmt::format("{}", extent));
  }
  return {ErrorCode::data, fmt::format("record {}: its shape is [{}], expected [{}] or [samples{}{}]", record.number,
                                       fmt::join(record.shape, ", "), text, text.empty() ? "" : ", ", text)};
}

}  // namespace shardrun::train
