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

using Kind = StageMessage::Kind;

/// Simulates all stages' messages with at most `most` in flight along each link.
class Exchange {
 public:
  Exchange(const IdVector<StageId, std::vector<StageMessage>>& stages, std::size_t most)
      : stages_(stages), most_(most), meetings_(stages.size()) {}

  /// Runs the simulation. Returns what each unfinished stage waits for; empty if all stages finish.
  std::string run(const std::function<MessageName(const StageMessage&)>& name) {
    const IdVector<StageId, std::size_t> done = walk(stages_, [&](StageId stage, const StageMessage& message) {
      return message.kind == Kind::meet ? meetings_.pass(stage) : passes(message);
    });
    std::string waiting;
    for (const StageId stage : stages_.ids()) {
      if (done[stage] < stages_[stage].size()) {
        const StageMessage& next = stages_[stage][done[stage]];
        const MessageName names = name(next);
        waiting += fmt::format("{}stage {} at {} waits {}", waiting.empty() ? "" : "; ", stage.number(), names.action,
                               what(next, names.node));
      }
    }
    return waiting;
  }

  /// Whether some send had to wait because its link was full.
  [[nodiscard]] bool held_back() const noexcept { return held_back_; }

 private:
  bool passes(const StageMessage& message) {
    Counts& counts = links_[message.link];
    if (message.kind == Kind::send) {
      const bool free = counts.sent < counts.received + most_;
      held_back_ = held_back_ || !free;
      counts.sent += free ? 1 : 0;
      return free;
    }
    const bool there = counts.sent > counts.received;
    counts.received += there ? 1 : 0;
    return there;
  }

  static std::string what(const StageMessage& message, const std::string& node) {
    switch (message.kind) {
      case Kind::send:
        return fmt::format("to send {}, as stage {} has yet to receive what is before it", node,
                           message.link.to.number());
      case Kind::receive: return fmt::format("for {} from stage {}", node, message.link.from.number());
      case Kind::meet: return fmt::format("for the other stages at {}", node);
    }
    return {};
  }

  const IdVector<StageId, std::vector<StageMessage>>& stages_;
  const std::size_t most_;
  bool held_back_ = false;
  std::map<Link, Counts> links_;
  Meetings meetings_;
};

}  // namespace

std::size_t least_under_way(const IdVector<StageId, std::vector<StageMessage>>& stages,
                            const std::function<MessageName(const StageMessage& message)>& name) {
  for (std::size_t most = 1;; ++most) {
    Exchange exchange(stages, most);
    const std::string waiting = exchange.run(name);
    if (waiting.empty()) {
      return most;
    }
    if (!exchange.held_back()) {
      throw Error(ErrorCode::job, "the pipeline's actions wait for each other: " + waiting);
    }
  }
}

}  // namespace shardrun::partition
