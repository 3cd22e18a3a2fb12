#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/transport_ranks.h"
#include "tests/unit/transports_shm/arena.h"
#include "tests/unit/transports_shm/stand_in.h"
#include "transports/shm/control.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

/// What this process has open or mapped, and how much unnamed memory is behind it.
struct Held {
  std::multiset<std::string> descriptors;
  std::multiset<std::string> mappings;
  std::uint64_t shared_blocks = 0;

  bool operator==(const Held&) const = default;
};

Held held() {
  Held found;
  std::map<std::uint64_t, std::uint64_t> blocks;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone);
    struct stat status {};
    if (gone || target.starts_with("/proc/")) {  // the listing itself
      continue;
    }
    found.descriptors.insert(target);
    if (target.starts_with("/memfd:") && stat(entry.path().c_str(), &status) == 0) {
      blocks[status.st_ino] = static_cast<std::uint64_t>(status.st_blocks);
    }
  }
  for (const auto& [file, size] : blocks) {
    found.shared_blocks += size;
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::size_t name = line.find('/');
    if (name != std::string::npos) {
      found.mappings.insert(line.substr(name));
    }
  }
  return found;
}

template <class T>
std::vector<T> added(const std::multiset<T>& before, const std::multiset<T>& after) {
  std::vector<T> more;
  std::set_difference(after.begin(), after.end(), before.begin(), before.end(), std::back_inserter(more));
  return more;
}

/// Checks that two ranks hold no more once they have prepared, carried out and freed ops as often again.
void require_nothing_stays(const std::function<void(Rank&, plugins::TransportGroup&)>& use) {
  Held before;
  Held after;
  run_ranks("shm", 2, [&](Rank& rank) {
    auto group = rank.group();
    for (const bool is_first : {true, false}) {
      for (int i = 0; i < 40; ++i) {
        use(rank, group);
        rank.meet("freed " + std::to_string(i) + (is_first ? "" : " again"));
      }
      rank.meet(is_first ? "used" : "used again");
      if (rank.rank() == 0) {
        (is_first ? before : after) = held();
      }
      rank.meet(is_first ? "looked" : "looked again");
    }
  });
  CHECK(added(before.descriptors, after.descriptors).empty());
  CHECK(added(before.mappings, after.mappings).empty());
  CHECK(before.shared_blocks == after.shared_blocks);
}

}  // namespace

TEST_CASE("shm: a freed op leaves nothing behind in the process") {
  const std::uint64_t count = GENERATE(as<std::uint64_t>{}, 512, 40'960);  // in one piece, in several
  const std::uint32_t flags = GENERATE(0U, SR_OP_FLAG_BLOCKING);
  require_nothing_stays([&](Rank&, plugins::TransportGroup& group) {
    std::vector<float> data(count);
    auto request = request_of(SR_OP_ALL_REDUCE, 1, count, data);
    request.flags = flags;
    auto op = group.prepare({request}, after(30));
    run(op);
  });
}

TEST_CASE("shm: a freed all_to_allv leaves nothing behind in the process") {
  require_nothing_stays([](Rank&, plugins::TransportGroup& group) {
    std::vector<float> data(8192);
    std::vector<float> received(8192);
    auto request = request_of(SR_OP_ALL_TO_ALLV, 1, 0, data);
    request.recv = buffer_of(received);
    request.send_counts = request.recv_counts = {4096, 4096};
    auto op = group.prepare({request}, after(30));
    run(op);
  });
}

TEST_CASE("shm: a refused op leaves nothing behind in the process") {
  require_nothing_stays([](Rank& rank, plugins::TransportGroup& group) {
    std::vector<float> data(4096);
    const std::uint64_t count = 4096 - rank.rank();
    (void)error_of([&] { (void)group.prepare({request_of(SR_OP_ALL_REDUCE, 1, count, data)}, after(30)); });
  });
}

TEST_CASE("shm: freed sends and receives leave nothing behind in the process") {
  require_nothing_stays([](Rank& rank, plugins::TransportGroup& group) {
    std::vector<float> sent(4096);
    std::vector<float> received(4096);
    const std::uint32_t peer = 1 - rank.rank();
    auto op = group.prepare(
        {request_of(SR_OP_SEND, 1, 4096, sent, peer), request_of(SR_OP_RECV, 1, 4096, received, peer)}, after(30));
    run(op);
  });
}

TEST_CASE("shm: short messages take the same few pages again and again") {
  std::array<std::uint64_t, 2> blocks = {};
  run_ranks("shm", 2, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> sent(1);
    std::vector<float> received(1);
    const std::uint32_t peer = 1 - rank.rank();
    auto send = group.prepare({request_of(SR_OP_SEND, 1, 1, sent, peer)}, after(30));
    auto receive = group.prepare({request_of(SR_OP_RECV, 1, 1, received, peer)}, after(30));
    for (std::size_t part = 0; part < blocks.size(); ++part) {
      for (int i = 0; i < 1500; ++i) {
        run(rank.rank() == 0 ? send : receive);
        run(rank.rank() == 0 ? receive : send);
      }
      rank.meet("sent " + std::to_string(part));
      if (rank.rank() == 0) {
        blocks[part] = held().shared_blocks;
      }
      rank.meet("looked " + std::to_string(part));
    }
  });
  constexpr std::uint64_t blocks_per_page = 8;
  CHECK(blocks[1] <= blocks[0] + 4 * blocks_per_page);  // 1500 slots of each direction are 47 pages
}

TEST_CASE("shm: a peer's registered memory is mapped once, and only while an op needs it") {
  std::array<std::size_t, 4> mapped = {};
  const std::array<Arena, 2> arenas;
  run_ranks("shm", 2, [&](Rank& rank) {
    const auto look = [&](std::size_t place) {
      rank.meet("look " + std::to_string(place));
      if (rank.rank() == 0) {
        mapped[place] = held().mappings.count("/memfd:arena (deleted)");
      }
      rank.meet("looked " + std::to_string(place));
    };
    const Arena& arena = arenas[rank.rank()];
    const std::uint64_t registration =
        rank.transport().register_memory(arena.data(), arena.bytes(), arena.descriptor());
    auto group = rank.group();
    std::vector<float> none;
    auto request = request_of(SR_OP_ALL_REDUCE, 1, arena.bytes() / sizeof(float), none);
    request.send = request.recv = sdk::Buffer{arena.data(), arena.bytes(), registration};
    look(0);
    {
      auto first = group.prepare({request}, after(30));
      look(1);
      request.id = 2;
      auto second = group.prepare({request}, after(30));
      look(2);
    }
    look(3);
  });
  CHECK(mapped == std::array<std::size_t, 4>{2, 4, 4, 2});
}

TEST_CASE("shm: members may free ops in different orders") {
  int wrong = 0;
  std::mutex mutex;
  Held before;
  Held after_all;
  run_ranks("shm", 3, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<std::vector<float>> data(8, std::vector<float>(100));
    std::vector<std::optional<plugins::TransportOp>> ops(data.size());
    for (std::uint64_t round = 0; round < 200; ++round) {
      // Each member first frees a different op of the round before.
      for (std::size_t i = 0; i < ops.size(); ++i) {
        const std::size_t slot = round % 2 == 0 ? i : ops.size() - 1 - i;
        const std::size_t freed_early = (slot + rank.rank()) % ops.size();
        ops[freed_early].reset();
        ops[slot].reset();
        rank.meet("freed " + std::to_string(round) + " " + std::to_string(i));
        ops[slot].emplace(group.prepare({request_of(SR_OP_ALL_REDUCE, slot, 100, data[slot])}, after(30)));
        data[slot].assign(100, static_cast<float>(rank.rank() + round));
        run(*ops[slot]);
        const std::lock_guard lock(mutex);
        wrong += data[slot] == std::vector<float>(100, static_cast<float>(3 + 3 * round)) ? 0 : 1;
      }
      if (round == 99 || round == 199) {
        rank.meet("used " + std::to_string(round));
        if (rank.rank() == 0) {
          (round == 99 ? before : after_all) = held();
        }
        rank.meet("looked " + std::to_string(round));
      }
    }
  });
  CHECK(wrong == 0);
  CHECK(before.shared_blocks == after_all.shared_blocks);
}

TEST_CASE("shm: an op freed before its start does not count as lost for a slower member") {
  run_ranks("shm", 4, [&](Rank& rank) {
    auto group = rank.group();
    std::vector<float> data(4096);
    for (int i = 0; i < 400; ++i) {
      (void)group.prepare({request_of(SR_OP_ALL_REDUCE, 1, data.size(), data)}, after(30));
    }
    rank.meet("end");
  });
  SUCCEED("nobody threw");
}

TEST_CASE("shm: the memory for ops lies behind everything else in groups of any size") {
  for (const std::size_t n : {std::size_t{1}, std::size_t{2}, std::size_t{64}, std::size_t{2000}}) {
    const shardrun::shm_transport::ControlLayout layout(n);
    CHECK(layout.ops >= n * n * (sizeof(shardrun::shm_transport::PeerClaim) + shardrun::shm_transport::Pair::bytes));
    CHECK((layout.members % 64 == 0 && layout.preparing % 64 == 0 && layout.pairs % 64 == 0 && layout.ops % 64 == 0));
  }
}

TEST_CASE("shm: a segment is assigned again once all members have released it, and never beyond the memory") {
  alignas(64) std::array<std::byte, 1024> memory = {};
  shardrun::shm_transport::SegmentPool pool(memory.data(), memory.size(), 2);
  std::vector<std::uint64_t> assigned;
  while (const std::optional<std::uint64_t> offset = pool.assign(100)) {
    REQUIRE(assigned.size() < 10);
    assigned.push_back(*offset);
  }
  CHECK(assigned == std::vector<std::uint64_t>{0, 256, 512, 768});
  { const shardrun::shm_transport::OpSegment first = pool.hold(256); }
  CHECK_FALSE(pool.assign(100));
  std::memset(pool.hold(256).data(), 1, 100);
  CHECK_FALSE(pool.assign(300));
  CHECK(pool.assign(100) == std::optional<std::uint64_t>(256));
  const shardrun::shm_transport::OpSegment again = pool.hold(256);
  CHECK(again.data() == pool.data(256));
}

TEST_CASE("shm: groups make no file with a name") {
  Held before;
  Held after_all;
  run_ranks("shm", 2, [&](Rank& rank) {
    rank.meet("all are loaded");
    if (rank.rank() == 0) {
      before = held();
    }
    rank.meet("looked");
    auto group = rank.group();
    std::vector<float> data(4096);
    auto sum = group.prepare({request_of(SR_OP_ALL_REDUCE, 1, data.size(), data)}, after(30));
    auto transfer = group.prepare(
        {request_of(rank.rank() == 0 ? SR_OP_SEND : SR_OP_RECV, 2, data.size(), data, 1 - rank.rank())}, after(30));
    run(sum);
    run(transfer);
    rank.meet("all is under way");
    if (rank.rank() == 0) {
      after_all = held();
    }
    rank.meet("end");
  });
  const std::vector<std::string> mappings = added(before.mappings, after_all.mappings);
  CHECK_FALSE(mappings.empty());
  for (const std::string& name : mappings) {
    CHECK_THAT(name, Catch::StartsWith("/memfd:") && Catch::EndsWith("(deleted)"));
  }
  for (const std::string& name : added(before.descriptors, after_all.descriptors)) {
    CHECK_THAT(name, Catch::StartsWith("/memfd:") || Catch::StartsWith("anon_inode:"));
  }
}

namespace {

/// A store that replaces what rank 2 says of itself.
class OddHost final : public SharedHost {
 public:
  explicit OddHost(std::string value) : value_(std::move(value)) {}
  void store_set(const std::string& key, std::string value) override {
    SharedHost::store_set(key, std::move(value));
    SharedHost::store_set(key.substr(0, key.rfind('/')) + "/2", value_);
  }

 private:
  std::string value_;
};

/// The error of a group that cannot connect because of what is said of rank 2.
std::string connecting_error(const std::string& said) {
  OddHost host(said);
  Rank rank(host, "shm", 0, 3);
  SharedHost& others = host;
  std::string error;
  const Held before = held();
  std::thread other([&] { (void)error_of([&] { (void)Rank(others, "shm", 1, 3).group(); }); });
  error = error_of([&] { (void)rank.group(); });
  other.join();
  const Held after = held();
  CHECK(added(before.descriptors, after.descriptors).empty());
  CHECK(added(before.mappings, after.mappings).empty());
  return error;
}

}  // namespace

TEST_CASE("shm: a group that fails to connect leaves nothing behind, and says why") {
  CHECK_THAT(connecting_error("nonsense"),
             Contains("group all") && Contains("member 2") && Contains("'nonsense'") && Contains("expected"));
  IdleProcess process;
  const std::string gone = std::to_string(process.pid());
  process.end();
  CHECK_THAT(connecting_error(gone),
             Contains("group all") && Contains("process " + gone + " of member 2") && Contains("is gone"));
}
