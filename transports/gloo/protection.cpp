#include "transports/gloo/protection.h"

#include <string>

namespace shardrun::gloo_transport {

sdk::Option protect_option() {
  return sdk::text_option(
      "protect", "auto", {"auto", "none", "integrity", "encrypt"},
      "what is done to bytes on the wire, beyond the proof by which each connection begins: none, a "
      "tag (integrity) or encryption too; auto: none within a machine, integrity between machines");
}

Protection protection_between(const sdk::Config& config, std::uint32_t one_rank, std::uint32_t other_rank,
                              const Endpoint& from, const Endpoint& to) {
  const std::string said = config.options.text("protect");
  for (const Protection protection : {Protection::none, Protection::integrity, Protection::encrypt}) {
    if (said == name_of(protection)) {
      return protection;
    }
  }
  const bool have_one_name = config.machines.empty() ? config.local_world_size == config.world_size
                                                     : config.machines[one_rank] == config.machines[other_rank];
  return have_one_name && is_within_machine(from, to) ? Protection::none : Protection::integrity;
}

}  // namespace shardrun::gloo_transport
