#include "core/workload/model.h"

#include <fmt/format.h>

namespace shardrun::workload {

void refuse(const ModelSettings& settings, std::string_view section, std::string_view key, std::string_view why) {
  const job::Job* const job = settings.job;
  if (job == nullptr) {
    throw Refusal(ErrorCode::job, std::string(why));
  }
  const std::string where = job->is_given(section, key) ? job->where(section, key) : job->where(section, "");
  throw Refusal(ErrorCode::job, fmt::format("{}: {}", where, why));
}

}  // namespace shardrun::workload
