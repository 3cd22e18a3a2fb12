#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "plugins/conformance/peer.h"
#include "plugins/loader/strategy.h"

namespace shardrun::conformance {

/// Processes that ask a strategy the same, as the ranks of a job do.
constexpr std::uint32_t strategy_members = 2;

/// What a strategy said.
struct Answer {
  bool is_plan = false;  ///< else a refusal
  std::string text;      ///< the plan, a line each statement, or the reason
  std::optional<plan::Plan> plan = std::nullopt;

  bool operator==(const Answer&) const = default;
};

/// This host, or one that is built from headers of a later release of the same major: its structs have grown.
enum class HostRelease { current, later };

/// Asks for a plan. Throws Failure for everything that is neither a plan which the host takes nor a refusal with its
/// reason, and where more than the error was written to.
[[nodiscard]] Answer ask(const plugins::Plugin& strategy, const plugins::StrategyRequest& request,
                         HostRelease host = HostRelease::current);

/// Throws Failure, with the first line that differs.
void require_same(const Answer& expected, const Answer& found, const std::string& what);

/// This process as a rank that has a strategy to ask.
class StrategyMember final : public Peer {
 public:
  StrategyMember(Store& store, const plugins::Directories& directories, std::string strategy, std::uint32_t rank);

  /// Opened by the first call.
  [[nodiscard]] const plugins::Plugin& strategy();
  /// One more.
  [[nodiscard]] plugins::Plugin open_another() const;
  [[nodiscard]] std::filesystem::path file() const;

 private:
  const plugins::Directories& directories_;
  std::string name_;
  std::optional<plugins::Plugin> strategy_;
};

}  // namespace shardrun::conformance
