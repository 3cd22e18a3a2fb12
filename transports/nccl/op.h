#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transports/nccl/group.h"

namespace shardrun::nccl_transport {

/// A prepared op or batch.
class NcclOp final : public sdk::Op {
 public:
  NcclOp(NcclGroup& group, std::vector<Stage> stages, std::string what, std::optional<std::uint32_t> peer);
  ~NcclOp() override;

  void start(void* queue, std::int64_t deadline) override;
  /// Waits in the group's first op: NCCL connects the members in it, and gives it to the stream only then.
  void enqueue(const sdk::Queue& queue, std::int64_t timeout) override;
  void join(const sdk::Queue& queue) override;
  bool test() override;
  bool wait(std::int64_t deadline) override;

 private:
  void require_device(const sdk::Queue& queue) const;
  bool is_complete();

  NcclGroup& group_;
  std::unique_ptr<Launch> launch_;
};

}  // namespace shardrun::nccl_transport
