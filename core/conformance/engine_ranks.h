#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/conformance/peer.h"
#include "plugins/loader/engine.h"

namespace shardrun::conformance {

/// An array with its elements, of four bytes each.
struct HeldArray {
  std::uint32_t element = 1;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

/// The collectives of an engine over the store, computed in the order of the ranks: slow, and without a transport.
class StoreRanks final : public plugins::EngineRanks {
 public:
  /// The ranks below `n` make one each. `place`: a name that no others have.
  StoreRanks(Peer& peer, std::string place, std::uint32_t n) : peer_(peer), place_(std::move(place)), n_(n) {}

  [[nodiscard]] std::uint32_t rank() const noexcept override { return peer_.rank(); }
  [[nodiscard]] std::uint32_t world_size() const noexcept override { return n_; }
  void barrier() override;
  [[nodiscard]] std::uint64_t start_send(std::uint32_t to, const plugins::ArrayView& array) override;
  [[nodiscard]] std::uint64_t start_receive(std::uint32_t from, const plugins::ArrayView& array) override;
  [[nodiscard]] bool test(std::uint64_t message) override;
  void wait(std::uint64_t message) override;
  void receive(std::uint32_t from, const plugins::MakeArray& make) override;
  void all_gather(const plugins::ArrayView& array, std::uint32_t axis, const plugins::MakeArray& make) override;
  void all_reduce(const plugins::ArrayView& array, std::uint32_t reduction, const plugins::MakeArray& make) override;
  void reduce_scatter(const plugins::ArrayView& array, std::uint32_t axis, std::uint32_t reduction,
                      const plugins::MakeArray& make) override;
  void all_to_all(const plugins::ArrayView& array, std::uint32_t axis, const plugins::MakeArray& make) override;
  void broadcast(const std::optional<plugins::ArrayView>& array, std::uint32_t root,
                 const plugins::MakeArray& make) override;
  void end() noexcept override {}

  /// The arrays of all ranks, which call the same.
  [[nodiscard]] std::vector<HeldArray> exchange(const std::string& call, const plugins::ArrayView& array);

 private:
  [[nodiscard]] HeldArray reduced(const std::string& call, const plugins::ArrayView& array, std::uint32_t reduction);
  [[nodiscard]] std::string message_name(std::uint32_t from, std::uint32_t to, std::uint64_t number) const;
  void require_peer(std::uint32_t peer) const;

  Peer& peer_;
  std::string place_;
  std::uint32_t n_;
  std::uint64_t calls_ = 0;
  std::map<std::uint32_t, std::uint64_t> sent_;      ///< messages to a rank
  std::map<std::uint32_t, std::uint64_t> received_;  ///< those from a rank that were started
  /// Receives that are not waited for: the sender, the message's number and the array. A send has no array.
  struct Message {
    std::uint32_t from = 0;
    std::uint64_t number = 0;
    std::optional<plugins::ArrayView> array;
  };
  std::map<std::uint64_t, Message> messages_;
  std::uint64_t next_message_ = 0;
};

}  // namespace shardrun::conformance
