#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/conformance/kinds.h"
#include "core/conformance/peer.h"
#include "plugins/loader/strategy.h"

namespace shardrun::conformance {

/// The number of processes that call a strategy in the same way, like the ranks of a job.
constexpr std::uint32_t strategy_members = 2;

/// A strategy's answer.
struct Answer {
  bool is_plan = false;  ///< whether it is a plan; otherwise it is a refusal
  std::string text;      ///< the plan, one statement per line, or the reason of the refusal
  std::optional<plan::Plan> plan = std::nullopt;

  bool operator==(const Answer&) const = default;
};

/// The release of the host that calls the plugin: this one, or a later one with the same major version, whose structs
/// are larger.
enum class HostRelease { current, later };

/// Asks for a plan. Throws Failure unless the answer is a valid plan, or a refusal with a reason. Also throws Failure
/// if the strategy wrote beyond its sr_error.
[[nodiscard]] Answer ask(const plugins::Plugin& strategy, const plugins::StrategyRequest& request,
                         HostRelease host = HostRelease::current);

/// Throws Failure, naming the first line that differs, unless the texts are equal.
void require_same(const Answer& expected, const Answer& found, const std::string& what);

/// A process of a check, as a rank with a strategy.
class StrategyMember final : public Peer {
 public:
  StrategyMember(Store& store, const plugins::Directories& directories, std::string strategy, std::uint32_t rank);

  /// The strategy under test. The first call opens it.
  [[nodiscard]] const plugins::Plugin& strategy();
  /// Opens another instance of the strategy.
  [[nodiscard]] plugins::Plugin open_another() const;
  [[nodiscard]] std::filesystem::path file() const;

 private:
  const plugins::Directories& directories_;
  std::string name_;
  std::optional<plugins::Plugin> strategy_;
};

using StrategyCase = CaseOf<StrategyMember, strategy_members>;

// Each of these functions adds the cases of a source file other than option_cases.cpp.
void add_plan_cases(std::vector<StrategyCase>& cases);
void add_purity_cases(std::vector<StrategyCase>& cases);
void add_hook_cases(std::vector<StrategyCase>& cases);

}  // namespace shardrun::conformance
