#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/conformance/member.h"
#include "core/conformance/values.h"

namespace shardrun::conformance {

/// How the buffers of a trial are arranged.
struct BufferLayout {
  bool in_place = false;  ///< whether send and recv share memory, if the op allows it
  bool registered = true;
};

/// The memory of one member's op, between guard bytes.
class Memory {
 public:
  Memory(Member& member, std::size_t bytes, bool registered);

  [[nodiscard]] sdk::Buffer part(std::size_t offset, std::size_t bytes) const;
  [[nodiscard]] bool guards_are_whole() const;

 private:
  std::vector<std::byte> own_;
  sdk::Buffer all_;  ///< the memory with its guards
};

/// A prepared collective with its data. Call fill, start, wait and verify, in this order, any number of times. They
/// throw Failure, and Errors of the transport.
class Trial {
 public:
  Trial(Member& member, MemberGroup& group, const Shape& shape, const BufferLayout& layout, std::uint64_t id,
        std::uint32_t flags = 0);

  /// Writes the data of a round. The receive buffer gets numbers that do not occur in the result.
  void fill(std::uint32_t round);
  void start();
  void wait();
  [[nodiscard]] bool wait_until(std::int64_t deadline) { return op_.wait(deadline); }
  [[nodiscard]] bool test() { return op_.test(); }
  void verify() const;
  /// Runs a whole round.
  void run(std::uint32_t round);

  [[nodiscard]] plugins::TransportOp& op() noexcept { return op_; }
  [[nodiscard]] const void* received() const noexcept { return recv_->data; }
  /// All buffers of the op, and its scratch.
  [[nodiscard]] std::vector<sdk::Buffer> buffers() const;

 private:
  [[nodiscard]] sdk::OpSpec request() const;
  [[noreturn]] void fail(const std::string& why) const;

  Shape shape_;
  BufferLayout layout_;
  std::uint32_t rank_;
  std::vector<sdk::OpSpec> ops_;  ///< the op of each member
  sdk::OpSpec& spec_;             ///< the op of this member
  std::vector<Memory> memory_;
  std::optional<sdk::Buffer> send_;
  std::optional<sdk::Buffer> recv_;
  std::optional<sdk::Buffer> scratch_;
  bool in_place_ = false;
  std::uint32_t round_ = 0;
  plugins::TransportOp op_;
};

}  // namespace shardrun::conformance
