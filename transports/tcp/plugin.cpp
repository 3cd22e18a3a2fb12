#include <shardrun/sdk/transport/two_function_transport.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transports/tcp/mesh.h"

namespace shardrun::tcp_transport {
namespace {

/// Sends and receives over sockets, with the SDK's collectives. Listeners bind to the address that the host gives, or
/// else to the loopback interface.
class TcpTransport : public sdk::TwoFunctionTransport<Mesh> {
 public:
  void open(const sdk::Config& config) { config_ = config; }

  /// A failed group leaves its addresses in the store. The generation, a count of such groups, tells them apart.
  std::unique_ptr<sdk::Group> group(const sdk::GroupSpec& spec) {
    sdk::Config config = config_;
    config.job += "/" + std::to_string(generations_[{spec.id, spec.members}]++);
    TwoFunctionTransport::open(config);
    return TwoFunctionTransport::group(spec);
  }

 private:
  sdk::Config config_;
  std::map<std::pair<std::uint64_t, std::vector<std::uint32_t>>, std::uint64_t> generations_;
};

}  // namespace
}  // namespace shardrun::tcp_transport

SHARDRUN_EXPORT_TRANSPORT(shardrun::tcp_transport::TcpTransport, "tcp", "1.0", "ethernet socket sockets ip network")
