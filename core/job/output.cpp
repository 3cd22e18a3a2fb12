#include "core/job/output.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstddef>
#include <string>

#include "core/base/error.h"

namespace shardrun::job {
namespace {

constexpr std::string_view time_placeholder = "{time}";

}  // namespace

void check_output(const Job& job) {
  const std::string& output = job.output.native();
  for (std::size_t open = output.find('{', job.output_given); open != std::string::npos;
       open = output.find('{', open + 1)) {
    const std::size_t close = output.find('}', open);
    if (close == std::string::npos) {
      return;
    }
    if (const std::string name = output.substr(open, close + 1 - open); name != time_placeholder) {
      throw Error(ErrorCode::job,
                  fmt::format("{}: [job] output has the placeholder {}, which nothing fills in; there is "
                              "{} (when the run begins, UTC, as 20261122-141503)",
                              job.where("job", "output"), name, time_placeholder));
    }
  }
}

bool has_placeholder(const Job& job) {
  return job.output.native().find(time_placeholder, job.output_given) != std::string::npos;
}

std::filesystem::path resolved_output(const Job& job, std::chrono::system_clock::time_point time) {
  const std::string text = fmt::format("{:%Y%m%d-%H%M%S}", fmt::gmtime(std::chrono::system_clock::to_time_t(time)));
  std::string output = job.output.native();
  for (std::size_t at = output.find(time_placeholder, job.output_given); at != std::string::npos;
       at = output.find(time_placeholder, at)) {
    output.replace(at, time_placeholder.size(), text);
  }
  return output;
}

}  // namespace shardrun::job
