#include "core/run/beginning.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/files/folder.h"
#include "core/forecast/disk.h"
#include "core/job/output.h"
#include "core/run/earlier_run.h"
#include "core/run/requirements.h"
#include "core/run/resuming.h"

namespace shardrun::run {

Beginning beginning_of(const job::Job& job, compile::Compiled& compiled) {
  Beginning beginning;
  beginning.kind = job.checkpoints.used ? Beginning::Kind::at_start : Beginning::Kind::unsaved;
  try {
    job::require_own_checkpoints(job);
    begin_from(open_resumed(job, beginning.notices), compiled);
    require_same_job(job, compiled);
    if (job.checkpoints.used) {
      std::ranges::move(forecast::require_checkpoint_folder(job), std::back_inserter(beginning.notices));
    }
    if (compiled.resumed == nullptr) {
      return beginning;
    }
    beginning.step = compiled.resumed->manifest().step;
    beginning.checkpoint = files::shown(compiled.resumed->path());
    load_data(compiled);
    std::ranges::move(check_resumed(job, compiled), std::back_inserter(beginning.notices));
    beginning.kind = has_nothing_left(job, compiled) ? Beginning::Kind::has_ended : Beginning::Kind::resumed;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::job && error.code() != ErrorCode::data) {
      throw;
    }
    beginning.kind = Beginning::Kind::is_refused;
    beginning.refusal = error.message();
    beginning.notices.clear();
  }
  return beginning;
}

std::string to_string(const Beginning& beginning) {
  std::string text;
  switch (beginning.kind) {
    case Beginning::Kind::unsaved: return "";
    case Beginning::Kind::at_start: text = "a run would begin at the start\n"; break;
    case Beginning::Kind::resumed:
      text = fmt::format("a run would go on after step {} from {}\n", beginning.step,
                         files::human_path(beginning.checkpoint));
      break;
    case Beginning::Kind::has_ended:
      text = fmt::format("a run would do nothing: {} is of the last step, {}, and the results are there\n",
                         files::human_path(beginning.checkpoint), beginning.step);
      break;
    case Beginning::Kind::is_refused: text = fmt::format("a run would be refused: {}\n", beginning.refusal); break;
  }
  for (const std::string& notice : beginning.notices) {
    text += "  " + notice + "\n";
  }
  return text;
}

}  // namespace shardrun::run
