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

/// An authenticated connection, as Gloo uses it. Everything that Gloo sends goes in records: one for each preamble,
/// others for the bytes of its message. A record that fails to open breaks the connection, and Gloo never sees its
/// bytes. Protection::encrypt takes `record_bytes` of memory for each connection.
class Connection final : public gloo::transport::tcp::Pair {
 public:
  /// REQUIRES: the device's own thread. Gloo's constructor opens a listener there; this closes it before anything
  /// serves it.
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

  /// Output in progress: up to two records, with their tags.
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
  std::size_t sealed_of_op_ = 0;  ///< plain bytes of the op being written

  Tag incoming_tag_ = {};
  std::size_t incoming_ = 0;  ///< bytes received of the current record, its tag included
  bool is_preamble_open_ = false;
};

/// The authenticated connections to a group's peers; none for this member's own rank.
using Proven = std::vector<std::optional<Handshake>>;

/// Gives them to Gloo as its connections. Throws std::exception.
void adopt(gloo::transport::Context& context, gloo::transport::Device& device, Proven proven);

}  // namespace shardrun::gloo_transport
