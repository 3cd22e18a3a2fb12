#pragma once

#include <gloo/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/pair.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "transports/gloo/handshake.h"
#include "transports/gloo/records.h"

namespace shardrun::gloo_transport {

/// A connection whose ends have proved themselves, as Gloo uses it. All that Gloo sends, its own words included, goes
/// in records: a preamble is one, the bytes of its message are in others. A record that does not
/// open breaks the connection, and its bytes are never given to Gloo. Protection::encrypt takes `record_bytes` of
/// memory for each connection.
class Connection final : public gloo::transport::tcp::Pair {
 public:
  /// REQUIRES: the device's own thread. Gloo's constructor opens a listener there, which nothing else then serves
  /// before it is closed here.
  Connection(gloo::transport::tcp::Context& context, gloo::transport::tcp::Device& device, int peer,
             Handshake handshake);
  ~Connection() override;

  void handleEvents(int events) override;

 protected:
  bool write(gloo::transport::tcp::Op& op) override;
  bool read() override;

 private:
  using Op = gloo::transport::tcp::Op;

  void seal_next(const Op& op, const std::uint8_t* message);
  [[nodiscard]] bool flush();
  [[nodiscard]] bool receive_record(std::uint8_t* data, std::size_t bytes);
  [[nodiscard]] bool report(const char* what);
  void fail(const std::string& why);

  std::optional<Records> sent_;
  std::optional<Records> received_;

  /// What is on its way out: up to two records, with their tags.
  struct Part {
    const std::uint8_t* data = nullptr;
    std::size_t bytes = 0;
  };
  std::array<std::uint8_t, sizeof(Op::preamble)> sealed_preamble_ = {};
  std::unique_ptr<std::uint8_t[]> sealed_;
  std::array<Tag, 2> tags_ = {};
  std::array<Part, 4> parts_ = {};
  std::size_t part_count_ = 0;
  std::size_t first_part_ = 0;
  std::size_t sealed_of_op_ = 0;  ///< plain bytes of the op that is written

  Tag incoming_tag_ = {};
  std::size_t incoming_ = 0;  ///< bytes of the record that is received, its tag included
  bool is_preamble_open_ = false;
};

/// One proven connection for each peer of a group; that of this member's own rank is not there.
using Proven = std::vector<std::optional<Handshake>>;

/// Makes Gloo's connections of them. Throws std::exception.
void adopt(gloo::transport::Context& context, gloo::transport::Device& device, Proven proven);

}  // namespace shardrun::gloo_transport
