#pragma once

#include <memory>
#include <string>

#include "core/http/page_server.h"
#include "core/job/job.h"
#include "core/metrics/exposition.h"
#include "core/run/run.h"

namespace shardrun::run {

/// Serves the numbers of a run while this object lives, as [metrics] prometheus says. Without that, does nothing.
class ServedNumbers {
 public:
  /// Throws Error{job} if it cannot listen there.
  ServedNumbers(const job::Job& job, const RunSettings& settings);

  /// Null if none are served.
  [[nodiscard]] metrics::Exposition* numbers() const noexcept { return numbers_.get(); }
  /// A line that tells where they are; "" if they are not served.
  [[nodiscard]] std::string notice() const;

 private:
  std::unique_ptr<metrics::Exposition> numbers_;
  std::unique_ptr<http::PageServer> server_;
};

}  // namespace shardrun::run
