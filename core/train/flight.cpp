#include "core/train/rank_link.h"

#include <fmt/format.h>

#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/files/atomic_file.h"
#include "core/files/folder.h"
#include "core/metrics/run_files.h"
#include "core/runtime/flight_record.h"

namespace shardrun::train {
namespace {

std::filesystem::path path_of(const std::filesystem::path& output, int rank) {
  return metrics::flight_folder(output) / fmt::format("rank-{}.record", rank);
}

/// More lines would push the root cause off the screen; the records contain all.
constexpr std::size_t most_waits = 8;

}  // namespace

std::filesystem::path new_flight_path(const std::filesystem::path& output, int rank) {
  files::create_folders(metrics::flight_folder(output));
  return path_of(output, rank);
}

void drop_flights(const std::filesystem::path& output) noexcept {
  std::error_code ignored;
  std::filesystem::remove_all(metrics::flight_folder(output), ignored);
}

std::string tell_flights(const std::filesystem::path& output, int ranks, int cause) {
  std::vector<runtime::FlightRecord> records;
  std::string text;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::filesystem::path path = path_of(output, rank);
    std::error_code ignored;
    try {
      records.push_back(runtime::read_flight_record(path));
    } catch (const Error&) {
      std::filesystem::remove(path, ignored);  // left by a rank that ended before its record was complete
      continue;
    }
    try {
      files::write_file_atomically(std::filesystem::path(path).replace_extension(".jsonl"),
                                   runtime::to_jsonl(records.back()));
    } catch (const Error&) {
      continue;
    }
    std::filesystem::remove(path, ignored);
    if (rank == cause) {
      text += fmt::format("\n  rank {} was at: {}", rank, runtime::place_of(records.back()));
    }
  }
  if (records.empty()) {
    drop_flights(output);
    return text;
  }
  const std::vector<std::string> waits = runtime::waits_among(records, cause);
  for (std::size_t i = 0; i < waits.size() && i < most_waits; ++i) {
    text += fmt::format("\n  {}", waits[i]);
  }
  if (waits.size() > most_waits) {
    text += fmt::format("\n  and {} more such waits", waits.size() - most_waits);
  }
  return text +
         fmt::format("\n  the last operations of every rank: {}", files::human_path(metrics::flight_folder(output)));
}

}  // namespace shardrun::train
