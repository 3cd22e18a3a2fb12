#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/compile/engine.h"
#include "core/conformance/peer.h"
#include "plugins/loader/engine.h"

namespace shardrun::conformance {

/// The most ranks that an engine is checked on.
constexpr std::uint32_t engine_members = 4;

/// This process as a rank with an engine.
class EngineMember final : public Peer {
 public:
  /// `settings`: "key=value" for options of the engine, and for sizes of data (is_data_setting).
  EngineMember(Store& store, const plugins::Directories& directories, std::string engine, std::uint32_t rank,
               std::vector<std::string> settings);

  /// The first call opens it.
  [[nodiscard]] const plugins::Engine& engine();
  /// Opens another instance.
  [[nodiscard]] plugins::Engine open_another() const;

  /// The numbers of ranks, up to engine_members, on which the engine accepts a small job. Throws Failure where there
  /// are none.
  [[nodiscard]] const std::vector<std::uint32_t>& sizes();
  /// The job on so many ranks, with the parameters of all. REQUIRES: it is one of sizes().
  [[nodiscard]] compile::JobEngine job_on(std::uint32_t n);
  [[nodiscard]] std::vector<plugins::EngineParameter> declare(const plugins::Engine& engine, std::uint32_t rank,
                                                              std::uint32_t n);

 private:
  void find_job();

  const plugins::Directories& directories_;
  std::string name_;
  std::vector<std::string> settings_;
  std::optional<plugins::Engine> engine_;
  plugins::EngineRequest request_;  ///< that it accepts
  std::vector<std::uint32_t> sizes_;
};

}  // namespace shardrun::conformance
