#include "core/data/dataset.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <string_view>
#include <utility>

#include "core/data/data_files.h"
#include "core/data/npy.h"

namespace shardrun::data {

DataFiles::DataFiles(const job::Job& job, std::vector<files::SteadyFile> given) {
  if (given.size() != data_files(job).size()) {
    throw Error(ErrorCode::internal,
                fmt::format("{} open files for the {} that the job names", given.size(), data_files(job).size()));
  }
  for (files::SteadyFile& file : given) {
    given_.emplace_back(std::move(file));
  }
}

files::SteadyFile DataFiles::open(const std::filesystem::path& path) {
  for (std::optional<files::SteadyFile>& file : given_) {
    if (file && file->path() == path) {
      files::SteadyFile taken = std::move(*file);
      file.reset();
      return taken;
    }
  }
  return files::SteadyFile(path);
}

std::vector<std::filesystem::path> data_files(const job::Job& job) {
  if (job::applies_model(job)) {
    return reads_records(job) ? std::vector<std::filesystem::path>() : std::vector{job.infer.from};
  }
  const job::DataSettings& data = job.data;
  std::vector<std::filesystem::path> files;
  for (const auto* const arrays : {&data.arrays, &data.validation_arrays}) {
    files.insert(files.end(), arrays->begin(), arrays->end());
  }
  for (const auto* const file : {&data.text, &data.tokens, &data.validation_text, &data.validation_tokens}) {
    if (!file->empty()) {
      files.push_back(*file);
    }
  }
  return files;
}

namespace {

std::unique_ptr<Dataset> open_with(const job::Job& job, DataFiles& files, std::optional<std::int64_t> vocab) {
  if (job::applies_model(job)) {
    return reads_records(job) ? nullptr : open_inputs(job, files, vocab);
  }
  if (!job.data.arrays.empty()) {
    return open_arrays(job, files);
  }
  if (!job.data.text.empty()) {
    return open_text(job, files);
  }
  return job.data.tokens.empty() ? nullptr : open_tokens(job, files);
}

/// Whether a .npy file contains another array after the first.
bool has_several_arrays(const std::filesystem::path& path) {
  try {
    constexpr std::string_view magic = "\x93NUMPY";
    const files::SteadyFile file(path);
    std::vector<std::byte> head(std::min(file.size(), most_header_bytes));
    file.read(0, head);
    const NpyHeader first = parse_npy_header(head, file.size(), path.native());
    std::size_t end = 0;
    if (__builtin_mul_overflow(static_cast<std::size_t>(first.elements), element_bytes(first.type), &end) ||
        __builtin_add_overflow(end, first.data_offset + magic.size(), &end) || end > file.size()) {
      return false;
    }
    std::string next(magic.size(), ' ');
    file.read(end - magic.size(), std::as_writable_bytes(std::span(next)));
    return next == magic;
  } catch (const Error&) {
    return false;  // opening the file later reports the error
  }
}

}  // namespace

bool reads_records(const job::Job& job) {
  std::error_code none;
  const std::filesystem::path& from = job.infer.from;
  const std::filesystem::file_type type = std::filesystem::status(from, none).type();
  return job::applies_model(job) && (job::is_standard(from) || type == std::filesystem::file_type::fifo ||
                                     type == std::filesystem::file_type::character || has_several_arrays(from));
}

std::optional<std::int64_t> prompts_of(const job::Job& job) {
  constexpr std::uintmax_t most_bytes = std::uintmax_t{1} << 28U;
  const std::filesystem::path& file = job.infer.from;
  std::error_code none;
  if (job::is_standard(file) ||
      !std::filesystem::is_regular_file(file, none)) {  // opening a pipe would wait for its writer
    return std::nullopt;
  }
  std::ifstream stream(file, std::ios::binary);
  if (!stream || std::filesystem::file_size(file, none) > most_bytes) {
    return std::nullopt;
  }
  std::int64_t prompts = 0;
  bool is_blank = true;
  std::string block(std::size_t{1} << 16U, '\0');
  while (stream.read(block.data(), std::ssize(block)) || stream.gcount() > 0) {
    for (const char byte : std::string_view(block).substr(0, static_cast<std::size_t>(stream.gcount()))) {
      if (byte == '\n') {
        is_blank = true;
      } else if (is_blank && byte != ' ' && byte != '\t' && byte != '\r') {
        is_blank = false;
        ++prompts;
      }
    }
  }
  return prompts;
}

std::unique_ptr<Dataset> open_dataset(const job::Job& job, std::optional<std::int64_t> vocab) {
  DataFiles files;
  return open_with(job, files, vocab);
}

std::string batch_notice(const Dataset& dataset, std::int64_t batch) {
  const std::int64_t samples = dataset.epoch_samples();
  return samples == 0 || batch <= samples
             ? ""
             : fmt::format(
                   "[data] batch = {} is more than the {} training samples: a step takes some of them more than "
                   "once",
                   batch, samples);
}

std::vector<std::string> name_notices(const job::DataSettings& data) {
  constexpr std::string_view packed[] = {".gz",  ".bz2",     ".xz",    ".zst", ".zip",
                                         ".tar", ".parquet", ".arrow", ".pkl", ".pt"};
  constexpr std::string_view of_records[] = {".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".xml", ".html"};
  constexpr std::string_view of_numbers[] = {".npy", ".npz", ".bin", ".safetensors"};
  constexpr std::string_view of_tokens[] = {".npy", ".bin"};
  constexpr std::string_view of_words[] = {".txt", ".md"};
  std::vector<std::string> notices;
  const auto look = [&](const char* key, const std::filesystem::path& file, bool is_text) {
    const std::string extension = file.extension().string();
    const auto is_in = [&](const auto& names) { return std::ranges::find(names, extension) != std::end(names); };
    const bool is_other = is_in(packed) || is_in(of_records) ||
                          (is_text ? is_in(of_numbers) : is_in(of_words) || (is_in(of_numbers) && !is_in(of_tokens)));
    if (is_other) {
      notices.push_back(fmt::format("[data] {} = {}: is a file of that kind meant? {}", key, file.filename().native(),
                                    is_text ? "All its bytes are taken for text, also the marks of its format"
                                            : "All its bytes are taken for tokens, also a header"));
    }
  };
  look("text", data.text, true);
  look("validation_text", data.validation_text, true);
  look("tokens", data.tokens, false);
  look("validation_tokens", data.validation_tokens, false);
  return notices;
}

std::unique_ptr<Dataset> no_data() {
  class NoData final : public Dataset {
   public:
    [[nodiscard]] workload::DataShape shape() const override { return {}; }
    [[nodiscard]] std::int64_t evaluation_samples() const override { return 0; }
    [[nodiscard]] std::int64_t tokens_per_sample() const override { return 1; }
    void check(int) const override {}
    [[nodiscard]] std::string describe() const override { return "no data: the model takes none"; }
    void fill_training(std::uint64_t, std::int64_t, const device::TensorView&,
                       const device::TensorView&) const override {}
    void fill_evaluation(std::int64_t, const device::TensorView&, const device::TensorView&) const override {}
  };
  return std::make_unique<NoData>();
}

std::unique_ptr<Dataset> attach_dataset(const job::Job& job, const std::vector<std::string>& handles,
                                        std::optional<std::int64_t> vocab) {
  const std::vector<std::filesystem::path> paths = data_files(job);
  std::vector<files::SteadyFile> given;
  for (std::size_t i = 0; i < std::min(paths.size(), handles.size()); ++i) {
    std::optional<files::SteadyFile> file = files::SteadyFile::open_handle(handles[i], paths[i]);
    if (!file) {
      return nullptr;
    }
    given.push_back(std::move(*file));
  }
  DataFiles files(job, std::move(given));
  return open_with(job, files, vocab);
}

std::vector<std::string> Dataset::fingerprints() const {
  std::vector<std::string> fingerprints;
  std::ranges::transform(files(), std::back_inserter(fingerprints),
                         [](const files::SteadyFile* file) { return file->fingerprint(); });
  return fingerprints;
}

std::vector<std::string> handles_of(const Dataset& dataset) {
  std::vector<std::string> handles;
  std::ranges::transform(dataset.files(), std::back_inserter(handles), [](const files::SteadyFile* file) {
    return file->handle(::getpid(), file->descriptor().get());
  });
  return handles;
}

InheritedData::InheritedData(const Dataset& dataset) {
  constexpr int lowest = 16;  // a started process itself uses the descriptors below this number
  for (const files::SteadyFile* const file : dataset.files()) {
    copies_.emplace_back(::fcntl(file->descriptor().get(), F_DUPFD, lowest));
    if (!copies_.back().is_open()) {
      throw files::system_error("hand on", file->path(), errno);
    }
    handles_.push_back(file->handle(0, copies_.back().get()));
  }
}

}  // namespace shardrun::data
