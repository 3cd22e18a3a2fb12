#include "core/partition/deadlock.h"

#include <fmt/format.h>

#include <map>

#include "core/base/error.h"

namespace shardrun::partition {
namespace {

struct Counts {
  std::size_t sent = 0;
  std::size_t received = 0;
};

class Walk {
 public:
  Walk(const std::vector<std::vector<StageMessage>>& stages, std::size_t most)
      : stages_(stages), most_(most), at_(stages.size(), 0) {}

  /// What the stages wait for that do not come to their ends.
  std::string run(const std::function<MessageName(const StageMessage&)>& name) {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
        while (at_[stage] < stages_[stage].size() && passes(stage)) {
          ++at_[stage];
          moved = true;
        }
      }
    }
    std::string waiting;
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
      if (at_[stage] < stages_[stage].size()) {
        const MessageName names = name(now(stage));
        waiting += fmt::format("{}stage {} at {} waits {}", waiting.empty() ? "" : "; ", stage, names.action,
                               what(stage, names.node));
      }
    }
    return waiting;
  }

  /// Whether some stage waited only because it may not send more.
  [[nodiscard]] bool held_back() const noexcept { return held_back_; }

 private:
  [[nodiscard]] const StageMessage& now(std::size_t stage) const { return stages_[stage][at_[stage]]; }

  bool passes(std::size_t stage) {
    const StageMessage& message = now(stage);
    Counts& counts = links_[message.link];
    if (message.sends) {
      const bool free = counts.sent < counts.received + most_;
      held_back_ = held_back_ || !free;
      counts.sent += free ? 1 : 0;
      return free;
    }
    const bool there = counts.sent > counts.received;
    counts.received += there ? 1 : 0;
    return there;
  }

  [[nodiscard]] std::string what(std::size_t stage, const std::string& node) const {
    const StageMessage& message = now(stage);
    return message.sends
               ? fmt::format("to send {}, as stage {} has yet to receive what is before it", node, message.link.to)
               : fmt::format("for {} from stage {}", node, message.link.from);
  }

  const std::vector<std::vector<StageMessage>>& stages_;
  const std::size_t most_;
  bool held_back_ = false;
  std::vector<std::size_t> at_;
  std::map<Link, Counts> links_;
};

}  // namespace

std::size_t least_under_way(const std::vector<std::vector<StageMessage>>& stages,
                            const std::function<MessageName(const StageMessage& message)>& name) {
  for (std::size_t most = 1;; ++most) {
    Walk walk(stages, most);
    const std::string waiting = walk.run(name);
    if (waiting.empty()) {
      return most;
    }
    if (!walk.held_back()) {
      throw Error(ErrorCode::job, "the pipeline's actions wait for each other: " + waiting);
    }
  }
}

}  // namespace shardrun::partition
